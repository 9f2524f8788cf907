"""Calls the callbacks of a `fit`: for a batch only those that override a batch hook.

The default hooks of `keras.callbacks.Callback` do nothing, and calling them costs time in every
step. A callback that overrides a batch hook gets logs that turn into numbers when it reads them.
"""

import contextlib
import importlib.util
import weakref
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.status import task_status
from kerasdist.support.replaced_method import ReplacedMethods
from kerasdist.training.context import peers, traits
from kerasdist.training.hooks.lazy_logs import LazyLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.hooks.update_callback import UpdateCallback
from kerasdist.training.report import chief, drift, dropped_batches, log_lines, lost_worker
from kerasdist.training.report.progress_bar import ProgressBar
from kerasdist.training.report.status_feed import StatusFeed
from kerasdist.training.report.wrapper import Wrapper
from kerasdist.training.trial import fit


class CallbackList(keras.callbacks.CallbackList):
    """A `keras.callbacks.CallbackList` that skips hooks which do nothing.

    Args: those of `keras.callbacks.CallbackList`.

    Raises:
        TypeError: A callback is a class.
        ImportError: Keras' TensorBoard is to write without the package that it needs.
    """

    def __init__(
        self,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: keras.Model | None = None,
        **params: Any,
    ):
        callbacks = keras.tree.flatten(callbacks) if callbacks else []
        _check_are_made(callbacks)
        _check_can_write(callbacks)
        if add_progbar and not any(
            isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks
        ):
            callbacks = [*callbacks, ProgressBar()]
        status = task_status.of_process()
        self._feed = StatusFeed(status) if add_history and status.is_watched else None
        if self._feed:
            callbacks = [*callbacks, self._feed]
        self._strategy = getattr(model, "distribute_strategy", None)
        self._is_only_worker = peers.count(self._strategy) == 1
        self._may_drift = False
        self._num_calls = 0
        self._wants_stop = self._has_warned = False
        self._last_batch = 0
        callbacks = chief.callbacks_for(callbacks, self._strategy)
        super().__init__(callbacks, add_history, False, model, **params)
        self._read_before_change = ReplacedMethods(model, _CHANGING_METRICS, self._read_first)
        self._shown = LazyLogs(dict)
        self._find_listeners()

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._may_drift = _may_drift(self.model, self._strategy)
        with self._sorted(_is_inner):
            super().on_train_begin(logs)
        for callback in self.callbacks:
            if isinstance(callback, UpdateCallback):
                callback.on_train_begun()
        if not self._is_only_worker:  # Only now: a callback may have restored them.
            drift.check_begin(self.model)
        lost_worker.say_cost(self.model, self.callbacks)
        self._find_listeners()

    def on_train_end(self, logs: dict | None = None) -> None:
        with self._sorted(_is_outer):
            super().on_train_end(logs)
        self._tell_of_dropped_batches()
        # Callbacks may have set weights just now. Without an epoch there are no logs, nor weights.
        if logs is not None:
            self._look_for_drift()

    def _tell_of_dropped_batches(self) -> None:
        train_function = self.model.train_function
        if not isinstance(train_function, TrainFunction):
            return
        if line := dropped_batches.describe(train_function.num_dropped):
            log_lines.say(self._strategy, line)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        with self._sorted(_is_inner):
            super().on_epoch_begin(epoch, logs)
        train_function = self.model.train_function
        if not self._is_only_worker and train_function is not None:
            train_function.look_again()
            if self.model.stop_training:
                self._request_stop(train_function)  # All workers know of it after the first step.
        for callback in self.callbacks:
            if isinstance(callback, UpdateCallback):
                callback.on_epoch_begun(epoch)
        self._find_listeners()

    def on_test_begin(self, logs: dict | None = None) -> None:
        super().on_test_begin(logs)
        self._find_listeners()

    @contextlib.contextmanager
    def _sorted(self, key: Callable) -> Generator[None]:
        callbacks, self.callbacks = self.callbacks, sorted(self.callbacks, key=key)
        try:
            yield
        finally:
            self.callbacks = callbacks

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._call("on_train_batch_begin", batch, logs or {})

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._last_batch = batch
        if self._feed:
            self._feed.advance(batch, logs)
        self._share("on_train_batch_end", batch, logs)
        if not self._is_only_worker:
            self._hold_stop()
        self._num_calls += 1
        if self._is_only_worker and self._num_calls in _CALLS_WITH_A_LOOK:
            self._look_for_drift()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if traits.has_remote_variables(self._strategy):
            self._look_for_nan(logs)
        super().on_epoch_end(epoch, logs)
        if not self._is_only_worker:
            self._agree_on_stop()
        self._look_for_drift(epoch)

    def _look_for_drift(self, epoch: int | None = None) -> None:
        if self._may_drift and not self._has_warned:
            self._has_warned = drift.warn_of_drift(self.model, epoch)

    def _look_for_nan(self, logs: dict | None) -> None:
        """Shows the exact logs to callbacks that stop at a NaN; the last they saw may be old."""
        if self.model.stop_training:
            return
        for callback in self.callbacks:
            if isinstance(callback, keras.callbacks.TerminateOnNaN):
                callback.on_batch_end(self._last_batch, logs)

    def _agree_on_stop(self) -> None:
        wants_stop = self._wants_stop or self.model.stop_training
        self.model.stop_training = peers.any_of(self._strategy, wants_stop)

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._call("on_test_batch_begin", batch, logs or {})

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._share("on_test_batch_end", batch, logs)

    def _share(self, hook: str, batch: int, logs: dict | None) -> None:
        """Calls a hook of the callbacks; each sees what those before it wrote into the logs.

        They share a copy, as with Keras: what they write is not in the logs of the epoch. If one of
        them keeps the copy, it is read at once: in a later step it would get that step's numbers.
        """
        if not self._listeners[hook]:
            return
        if not isinstance(logs, LazyLogs):
            self._call(hook, batch, logs)
            return
        # Not every worker has the same callbacks, so they cannot sum up numbers here.
        logs = logs.of_worker
        shared = LazyLogs(lambda: logs.data)
        reference = weakref.ref(shared)
        self._shown = logs
        with self._read_before_change:
            self._call(hook, batch, shared)
        del shared
        if reference() is not None:
            _ = logs.data

    def _read_first(self, method: Callable, *args: Any, **kwargs: Any) -> Any:
        """Reads the logs of a step before a callback has the model change what they are read from.

        The methods are those of this model alone, so that a subclass may have its own.
        """
        _ = self._shown.data
        return method(*args, **kwargs)

    def _call(self, hook: str, batch: int, logs: dict | None) -> None:
        for callback in self._listeners[hook]:
            getattr(callback, hook)(batch, logs=_logs_for(callback, hook, logs))

    def _hold_stop(self) -> None:
        """Delays a stop in the middle of an epoch until all workers know of it.

        A worker that stopped alone would leave the others waiting for its gradients. A request may
        also come from a `Checkpoint` that was told to end, and leaves when the epoch is over.
        """
        train_function = self.model.train_function
        # Where it is None, a callback has compiled the model: no step follows in this epoch.
        if train_function is None:
            return
        if train_function.is_stop_requested:
            self._agree_on_stop()
        elif self.model.stop_training:
            self._request_stop(train_function)

    def _request_stop(self, train_function: TrainFunction) -> None:
        self.model.stop_training = False
        self._wants_stop = True
        train_function.request_stop()

    def _find_listeners(self) -> None:
        """Looks for batch hooks anew: other hooks may assign some, as a TqdmCallback does."""
        for callback in self.callbacks:
            if isinstance(callback, Wrapper):
                callback.take_over_hooks()
        self._listeners = {hook: self._overriding(hook) for hook in _BATCH_HOOKS}
        # What is saved belongs to a moment between two steps.
        self._listeners["on_train_batch_begin"].sort(key=_is_inner)
        self._listeners["on_train_batch_end"].sort(key=_is_outer)

    def _overriding(self, hook: str) -> list:
        return [callback for callback in self.callbacks if is_overridden(callback, hook)]


def _check_are_made(callbacks: list) -> None:
    for each in callbacks:
        if isinstance(each, type):
            name = each.__name__
            raise TypeError(
                f"`callbacks` must hold instances. Received: the class {name}. Write {name}(...)."
            )


def _check_can_write(callbacks: list) -> None:
    """Raises what TensorFlow would say at the end of the first epoch."""
    inner = (each.innermost if isinstance(each, Wrapper) else each for each in callbacks)
    uses_it = any(isinstance(each, keras.callbacks.TensorBoard) for each in inner)
    if uses_it and importlib.util.find_spec("tensorboard") is None:
        raise ImportError(
            "The callback TensorBoard needs the package tensorboard, which is not installed: "
            "pip install tensorboard. Or use kerasdist.callbacks.Summaries, which writes without."
        )


def _may_drift(model: keras.Model, strategy: tf.distribute.Strategy | None) -> bool:
    """Whether the replicas of a model can differ after some steps that were the same on each."""
    if peers.count(strategy) > 1:
        return True  # Their callbacks may not be the same.
    is_replicated = strategy is not None and strategy.num_replicas_in_sync > 1
    return is_replicated and fit.is_due(model)


def _is_outer(callback: keras.callbacks.Callback) -> bool:
    # Sorting keeps the order of the others.
    return getattr(callback, "encloses_training", False)


def _is_inner(callback: keras.callbacks.Callback) -> bool:
    return not _is_outer(callback)


def _logs_for(callback: Any, hook: str, logs: dict | None) -> dict | None:
    """Returns the logs; None for a TensorBoard that would read them in each step for nothing."""
    if getattr(type(callback), hook) is not keras.callbacks.TensorBoard.on_train_batch_end:
        return logs
    # A writer and a condition that an interrupted TensorBoard left behind must not count here.
    writes = callback.update_freq != "epoch" and tf.summary.should_record_summaries()
    return logs if writes else None


def is_overridden(callback: keras.callbacks.Callback, hook: str) -> bool:
    """Whether a callback overrides a hook, which does nothing in Keras' own class."""
    # The train hooks call the older on_batch_begin and on_batch_end.
    names = {hook, hook.replace("_train_batch", "_batch")}
    return any(
        getattr(getattr(callback, name, None), "__func__", None)
        is not getattr(keras.callbacks.Callback, name, None)
        for name in names
    )


# At the end of an epoch, a state that is clipped may be the same on all replicas again. Few, since
# what is read in a step is waited for.
_CALLS_WITH_A_LOOK = (5, 50)

_BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)

# `fit` and `evaluate` begin with the first.
_CHANGING_METRICS = ("reset_metrics", "train_on_batch", "test_on_batch", "compile")
