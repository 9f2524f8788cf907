"""Checkpoints, from which the same script goes on as if it had never been interrupted."""

import collections
import os
import signal
import sys
import time
import uuid
import warnings
import weakref
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import (
    Folder,
    Saved,
    Writer,
    callback_states,
    histories,
    resume,
    variables,
)
from kerasdist.checks import (
    check_bool,
    check_choice,
    check_int,
    check_one_of,
    check_secs,
    check_text,
    checked_folder,
)
from kerasdist.exit_codes import SIGNALED
from kerasdist.lifetime.termination import Termination
from kerasdist.private import keras_adapter, keras_optimizers
from kerasdist.terminal import say
from kerasdist.training import peers, running_call, traits
from kerasdist.training.report.update_counter import UpdateCounter, updates_of
from kerasdist.training.step.update_callback import UpdateCallback

# How many `fit` of a model have ended, by folder: a script that is started again makes the same
# ones in the same order.
_num_fits = weakref.WeakKeyDictionary()
# The model of the last `fit` that has ended, by folder.
_last_models: dict[str, weakref.ref] = {}

# The name of the array that holds tf.data's state of an iterator: compressed, uint8.
_DATA_STATE = "data/iterator"
# In the names of logs whose largest value is the best.
_RISING = ("acc", "auc", "precision", "recall", "f1", "iou")


class Checkpoint(UpdateCallback):
    """Saves the training now and then, and resumes it when the same script is started again.

    A checkpoint holds weights, optimizers, metrics, random seeds, the states of recurrent layers,
    the `tf.Variable` and `tf.random.Generator` of your classes, the state of callbacks
    (`EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint`, those of kerasdist, and all with
    `get_state()` and `set_state(state)`, which exchange a dict of arrays), the history, and the
    place in the data. When `fit` begins and the folder holds one, training goes on there: in the
    middle of an epoch, with the same history at its end. Give the program a seed
    (`keras.utils.set_random_seed`), so that what comes next is drawn as it would have been.

    To get to its place, `fit` reads the data of the epoch again up to there. It also reads the
    earlier epochs again, unless the dataset has no Python code, no random operation except a
    `shuffle` of at most 200,000 elements, and is read once per epoch, without `steps_per_epoch`.

    If a model is trained by several `fit` in a row, give each of them the same folder: those that
    are over train nothing. The numbers of the checkpoints keep rising even if the model is compiled
    in between and the optimizer counts from 0. If the training is finished, a line says so, and
    model, history and callbacks are as it left them. With more `epochs` or data it goes on, also in
    an epoch in which the data ran out.

    The chief writes. A checkpoint is complete or absent, whenever its writer is killed. A damaged
    one is skipped with a warning; one that cannot be read for another reason, such as its
    permissions, is an error. The weights load with stock Keras:
    `model.load_weights("<directory>/step-00000120/model.weights.h5")`.

    Args:
        directory: Folder of the run; any path that `tf.io.gfile` supports.
        every_steps: Updates of the optimizer between two checkpoints. Without it and `every_secs`
            there is one after each epoch. There is always one at the end.
        every_secs: Seconds between two checkpoints instead; workers agree on the step. The files
            are written while training goes on; it stops only to copy weights and optimizer in
            memory. A kill during the writing costs the steps since the checkpoint before.
        keep: How many to keep, the newest.
        keep_best: How many checkpoints to keep in addition: those of the epochs with the best
            `monitor`. There is then a checkpoint after each epoch.
        monitor: The log of an epoch that says which are best, such as "val_loss".
        mode: "min" or "max", what is best; "auto" takes "max" for names that contain "acc", "auc",
            "precision", "recall", "f1" or "iou".
        weights_if_changed: What to do if the model has other layers, or trains with another
            optimizer or batch size (of arrays, or of a dataset that ends with `batch`): False
            raises an error that lists the differences; True takes only the weights, which must fit,
            and trains from the first epoch.
        save_on_term: Whether SIGTERM, as sent by a scheduler that takes the machine back, is
            answered with a checkpoint after the running step, the same on all workers, and exit
            code 143.
        on_error: What to do if a checkpoint cannot be written: "warn" goes on training, and tries
            again with the next one; "raise" stops.

    Attributes:
        resumed_from: The checkpoint that the last `fit` went on from; None for a fresh start.
        best: The checkpoint with the best `monitor` in the folder; None if none has a value of it.

    Raises:
        TypeError, ValueError: Both of `every_steps` and `every_secs` are given; `every_steps` or
            `keep` is not an int of at least 1; `keep_best` is not an int, or negative; `every_secs`
            is not a number, or negative; `monitor` is not a str; `weights_if_changed` or
            `save_on_term` is not a bool; `mode` or `on_error` is not one of these; or `directory`
            is not the path of a folder.
        Checkpoint.MismatchError: A ValueError, when `fit` begins: the checkpoint is of another
            model, optimizer or batch size.
        ValueError: When `fit` begins: this Checkpoint has seen another model trained to its end in
            this process.
        OSError: When `fit` begins: a checkpoint that may be whole cannot be read.

    Example:
        ```python
        model.fit(dataset, epochs=10, callbacks=[Checkpoint("runs/1", every_steps=1000)])
        ```
    """

    class MismatchError(ValueError):
        """The checkpoint is of another model, optimizer or batch size."""

    # It saves and restores before other callbacks hear of a step: they change what is saved.
    encloses_training = True

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        keep: int = 5,
        keep_best: int = 0,
        monitor: str = "val_loss",
        mode: str = "auto",
        weights_if_changed: bool = False,
        save_on_term: bool = True,
        on_error: str = "warn",
    ):
        super().__init__()
        check_one_of(every_steps=every_steps, every_secs=every_secs, may_be_none=True)
        if every_steps is not None:
            check_int("every_steps", every_steps, at_least=1)
        if every_secs is not None:
            check_secs("every_secs", every_secs)
        check_int("keep", keep, at_least=1)
        check_int("keep_best", keep_best, at_least=0)
        check_bool("weights_if_changed", weights_if_changed)
        check_bool("save_on_term", save_on_term)
        check_text("monitor", monitor)
        check_choice("mode", mode, ("auto", "min", "max"))
        check_choice("on_error", on_error, ("warn", "raise"))
        self.directory = _absolute(checked_folder("directory", directory))
        self.every_steps, self.every_secs, self.keep = every_steps, every_secs, keep
        self.keep_best, self.monitor = keep_best, monitor
        self.mode = _mode_of(monitor) if mode == "auto" else mode
        self.weights_if_changed, self.on_error = weights_if_changed, on_error
        self.save_on_term = save_on_term
        self.resumed_from: str | None = None
        self._last_model: weakref.ref | None = None  # Of a `fit` that has ended.
        self._termination = Termination()
        self._folder = Folder(self.directory)
        self._monitored: float | None = None  # Of the epoch that has just ended.
        self._has_missed = False
        self._run = uuid.uuid4().hex[:12]

    @property
    def best(self) -> str | None:  # Documented in the class.
        ranked = self._folder.ranked(self.monitor, self.mode)
        return self._folder.path_of(ranked[0]) if ranked else None

    def describe(self):
        return ""

    def on_train_begin(self, logs=None):
        self._fit = _num_fits.setdefault(self.model, collections.Counter())[self._key()]
        self._training: Any = running_call.training_of(self.model)
        self._training.keeps_data_state = True
        self._callbacks = self._training.callbacks
        self._batch_size = self._training.batch_size  # Validation comes with one of its own.
        self._forget_last_fit()
        if self.save_on_term:
            self._termination.watch()
            running_call.at_end(self.model, self._termination.unwatch)
        self._first_rates = self._rates()
        saved = self._agreed_newest()
        updates_of(self.model)  # Optimizers of layers count from here, before they are restored.
        self._num_before = self._num_left_behind(saved if self._begin(saved) else None)
        self._num_updates = updates_of(self.model)
        self._last_step_function: Any = self.model.train_function
        running_call.at_end(self.model, lambda: setattr(self, "_last_step_function", None))
        self._writer = self._make_writer()
        running_call.at_end(self.model, self._writer.wait)
        self._counter = self._make_counter()

    def _forget_last_fit(self):
        self._pending: Saved | None = None
        self._begun: Saved | None = None  # The same, if it is of the middle of its epoch.
        self._first_epoch: int | None = None
        self._is_due, self._epoch, self._num_epochs_here = False, 0, 0
        self._num_steps, self._cut = 0, None  # Of this epoch; see `_note_cut`.
        self.resumed_from = None
        self._has_other_optimizer = False

    def _make_writer(self) -> Writer:
        return Writer(
            self._folder,
            keep=self.keep,
            keep_best=self.keep_best,
            monitor=self.monitor,
            mode=self.mode,
            raises=self.on_error == "raise",
        )

    def _make_counter(self) -> UpdateCounter | None:
        if self.every_steps is None and self.every_secs is None:
            return None
        return UpdateCounter(self.model, every_steps=self.every_steps, every_secs=self.every_secs)

    def on_epoch_begin(self, epoch, logs=None):
        if not self._num_epochs_here and peers.is_chief(self.model.distribute_strategy):
            callback_states.read(self._callbacks)  # It warns now of what it will leave out.
        self._epoch, self._num_steps, self._cut = epoch, 0, None
        if self._first_epoch is None:
            self._first_epoch = epoch
        self._num_resumed = None
        is_saved = True
        if self._pending is not None:
            saved, self._pending = self._pending, None
            self._go_on(saved)
        elif self._is_due or (self._counter is None and self._num_epochs_here):
            self._save(epoch, 0, beside=self.every_secs is not None)
        else:
            is_saved = False
        self._num_epochs_here += 1
        self._num_logged = histories.lengths_of(self._history)
        # After the next step in the middle of an epoch: what is saved is of an epoch that begins.
        if self._num_resumed is None and self._has_to_leave():
            if not is_saved:
                self._save(epoch, 0)
            self._leave()

    def on_epoch_begun(self, epoch):
        """Is called after `on_epoch_begin` of all callbacks.

        A checkpoint of the middle of an epoch holds what they changed as it began, and by now they
        have changed it once more: a learning rate that is halved in each epoch would be halved
        twice.
        """
        if self._begun is not None:
            self._restore(self._begun)
            self._begun = None

    def on_test_begin(self, logs=None):
        super().on_test_begin(logs)
        self._note_cut()

    def on_epoch_end(self, epoch, logs=None):
        self._note_cut()
        if logs is not None and self._num_steps == self._num_resumed:  # No step came after it.
            logs |= {name: self._logs_before[name] for name in self._logs_before.keys() - logs}
        if not self.keep_best:
            return
        self._is_due = True
        value = (logs or {}).get(self.monitor)
        if value is None and not self._has_missed:
            warnings.warn(
                f"Checkpoint(keep_best={self.keep_best}) finds no {self.monitor!r} among the logs "
                f"of the epoch, which are: {', '.join(logs or ())}. It keeps only the newest.",
                stacklevel=2,
            )
            self._has_missed = True
        self._monitored = None if value is None else float(value)

    def on_train_batch_begin(self, batch, logs=None):
        if self._is_due:
            self._save(self._epoch, batch, beside=self.every_secs is not None)

    def on_train_batch_end(self, batch, logs=None):
        self._num_steps = batch + 1
        # Written before the next step, when all callbacks have seen this one.
        if self._counter is not None and self._counter.advance(batch):
            self._is_due = True
        is_last = batch + 1 == (self.params or {}).get("steps")
        if not is_last and self._has_to_leave():
            self._save(self._epoch, batch + 1)
            self._leave()

    def on_train_end(self, logs=None):
        keras_adapter.begin_at(self.model, None)
        _num_fits[self.model][self._key()] += 1
        _last_models[self._key()] = self._last_model = weakref.ref(self.model)
        if self._pending is not None:  # Nothing was left to train.
            self._end_as_before(self._pending)
        elif self._cut is not None:
            self._save(self._epoch, self._num_steps, is_finished=True)
        else:
            self._save(self._epoch + 1, 0, is_finished=True)

    def _end_as_before(self, saved: Saved):
        """Restores what the finished training left, after what other callbacks do at its end."""
        self._restore_weights(saved)
        if saved.record["fit"] == self._fit:  # A later one had callbacks of its own.
            callback_states.write(self._callbacks, saved.record["callbacks"], saved.arrays)
        histories.extend(self._history, saved.record["history"])

    def _note_cut(self):
        """Keeps what an epoch in which the data ran out needs to go on if there is more later.

        The validation that follows resets the metrics.
        """
        strategy, num_expected = self.model.distribute_strategy, (self.params or {}).get("steps")
        if traits.keeps_own_pace(strategy):
            self._step_function.finish()
            self._num_steps = self._step_function.num_steps_of_epoch
        if self._cut is not None or self._num_steps >= (num_expected or 0):
            return
        if not peers.sum_over(strategy, self.model.stop_training):
            self._cut = variables.read(strategy, variables.variables_of(self.model))

    @property
    def _step_function(self):
        """The one that runs, or the last one if a callback has compiled the model since."""
        self._last_step_function = self.model.train_function or self._last_step_function
        return self._last_step_function

    # Leaving.

    def _has_to_leave(self) -> bool:
        """Whether a task has received SIGTERM; the same on all workers."""
        strategy = self.model.distribute_strategy
        if peers.count(strategy) == 1:
            return self._termination.is_asked_for
        if self.model.train_function is None:  # A callback has compiled it: no step follows.
            return False
        if self._termination.is_asked_for:
            self._step_function.request_stop()
        if not self._step_function.is_stop_requested:
            return False
        return bool(peers.sum_over(strategy, self._termination.is_asked_for) > 0)

    def _leave(self):
        self._writer.wait()
        self._say(
            f"Received SIGTERM: checkpoint saved in {self.directory}. Start the same command to "
            "resume."
        )
        raise SystemExit(SIGNALED + signal.SIGTERM)

    # Resuming.

    def _agreed_newest(self) -> Saved | None:
        """Returns the newest checkpoint that is whole, the same for all workers."""
        saved = error = None
        try:
            saved = self._folder.newest()
        except OSError as caught:  # Others may be able to read it.
            error = caught
        step = resume.UNREADABLE if error else saved.step if saved else resume.MISSING
        steps = peers.gather(self.model.distribute_strategy, np.array([step]))
        if error:
            raise error
        resume.check_agreement(self.directory, [int(each) for each in steps[:, 0]])
        if saved is None and self._folder.steps():
            warnings.warn(
                f"No checkpoint in {self.directory!r} can be read: training starts over.",
                stacklevel=2,
            )
        return saved

    def _begin(self, saved: Saved | None) -> bool:
        """Resumes a checkpoint if it is one of this `fit`; returns whether it is."""
        if saved is None:
            return False
        training = resume.Training(
            fit=self._fit,
            epochs=self._epochs(),
            batch_size=self._batch_size,
            steps_per_epoch=(self.params or {}).get("steps"),
            num_batches=self._training.num_batches,
            variables=variables.signature_of(self.model),
            other_optimizers=variables.other_optimizers_of(self.model),
        )
        if resume.is_of_earlier_fit(saved.record, training):
            return False
        if self._last_model and self._last_model() is not self.model:
            raise ValueError(
                f"{saved.path} is of another model, which this Checkpoint has seen trained in this "
                "process. Give each model, such as that of a fold, a Checkpoint and a folder of "
                "its own."
            )
        if differences := resume.differences(saved.record, training):
            self._refuse(saved, resume.describe_differences(differences))
            return False
        self._has_other_optimizer = resume.has_other_optimizer(saved.record, training)
        self._resume(saved, training)
        return True

    def _num_left_behind(self, resumed: Saved | None) -> int:
        """Returns how many updates there were before those that the optimizer counts.

        After another `compile` it counts from 0, but its checkpoints must be the newest.
        """
        if resumed:
            return resumed.step - resumed.record["updates"]
        newest = max(self._folder.steps(), default=0)
        return max(0, newest - updates_of(self.model))

    def _refuse(self, saved, differences: str):
        if not self.weights_if_changed:
            raise self.MismatchError(
                f"{saved.path} is of another training: {differences}. Restore the model, optimizer "
                "and batch size, use another folder, or take only the weights with "
                "weights_if_changed=True."
            )
        with keras_optimizers.without_optimizers(self.model):
            self._load_weights(saved)
        self._say(
            f"Weights taken from {saved.path}; the rest is of another training: {differences}."
        )

    def _resume(self, saved: Saved, training: resume.Training):
        record, rates = saved.record, self._rates()
        self._restore_weights(saved)
        self.resumed_from = saved.path
        self._run = record["run"]
        self._monitored = record.get("monitored", {}).get(self.monitor)
        self._pending = saved
        if resume.is_over(record, training):
            keras_adapter.begin_at(self.model, training.epochs)
            last = _last_models.get(self._key())
            is_of_another = last is not None and last() is not self.model
            self._say(
                resume.describe_end(saved, training, self.directory, is_of_another=is_of_another)
            )
            return
        keras_adapter.begin_at(self.model, record["epoch"])
        self._first_epoch = record.get("first_epoch", 0)
        state = _state_of_data(saved)
        self._training.resume_at = running_call.DataPlace(
            epoch=record["epoch"] - self._first_epoch, step=record["step"], state=state
        )
        self._say(resume.describe_resume(saved, training, has_data_state=state is not None))
        self._first_rates = record.get("learning_rates", rates)
        # In a later `fit` it is what the callbacks of an earlier one have left.
        if not self._fit and resume.are_other_rates(self._first_rates, rates):
            self._say(resume.describe_rates(self._first_rates, self._rates(), rates))
        # `on_train_begin` of other callbacks sees what it has seen before; `_go_on` restores it.
        for rate, value in zip(keras_optimizers.learning_rates_of(self.model), rates, strict=True):
            rate.assign(value)
        if missing := variables.missing_in(saved.arrays, self.model):
            self._say(f"{saved.path} does not hold {', '.join(missing)}, which begin anew.")

    def _rates(self) -> list[float]:
        return [float(each) for each in keras_optimizers.learning_rates_of(self.model)]

    def _restore_weights(self, saved):
        if self._has_other_optimizer:  # A later `fit` restores the rest when it begins.
            with keras_optimizers.without_optimizers(self.model):
                self._load_weights(saved)
            return
        self._load_weights(saved)
        if any(name.startswith("global seed/") for name in saved.arrays):
            keras_adapter.make_global_seed_generator()
        named = variables.variables_of(self.model)
        if saved.record["step"] == 0:  # An epoch begins, and its metrics with it.
            named = {name: each for name, each in named.items() if not name.startswith("metric/")}
        arrays, metrics = saved.arrays, saved.record.get("metrics")
        if metrics is not None:  # Earlier versions did not name them.
            now = variables.metrics_of(self.model)
            arrays = variables.with_metrics_in_order(arrays, metrics, now)
        variables.write(self.model.distribute_strategy, named, arrays)

    def _load_weights(self, saved):
        with saved.weights() as path, keras_adapter.taken_as_built(self.model):
            self.model.load_weights(path)
        both = saved.record["variables"], variables.signature_of(self.model)
        if not variables.differences(*map(variables.weights_in, both)):
            named = variables.weights_of(self.model)
            variables.write(self.model.distribute_strategy, named, saved.arrays)

    def _go_on(self, saved):
        """Restores when the epoch of a checkpoint begins, before other callbacks hear of it."""
        record = saved.record
        self._num_steps = record["step"]
        self._num_resumed = self._num_steps or None
        self._restore(saved)
        histories.extend(self._history, record["history"], lengths=record.get("num_logged"))
        states = record["callbacks"], saved.arrays
        if dropped := callback_states.without_callback(self._callbacks, *states):
            self._say(
                f"The state of {', '.join(dropped)} in {saved.path} is dropped: this `fit` has no "
                "such callback."
            )
        self._begun = saved if self._num_resumed else None
        self._say_new_metrics(saved)
        # A later `fit` begins with its own `initial_epoch`.
        keras_adapter.begin_at(self.model, None)

    def _say_new_metrics(self, saved):
        metrics = saved.record.get("metrics")
        if metrics is None or not self._num_resumed:
            return
        new = [each for each in variables.metrics_of(self.model) if each not in metrics]
        if names := dict.fromkeys(each.rpartition(" ")[0] for each in new):
            self._say(
                f"{saved.path} does not hold the metrics {', '.join(names)}: in this epoch they "
                "count only the steps that are left."
            )

    def _restore(self, saved):
        """Restores also what `fit`, the data and the callbacks have changed since it began."""
        self._restore_weights(saved)
        callback_states.write(self._callbacks, saved.record["callbacks"], saved.arrays)
        if saved.record["step"]:  # It may turn out to be the last one of its epoch.
            results = self.model.get_metrics_result().items()
            self._logs_before = {name: float(each) for name, each in results if np.ndim(each) == 0}

    # Saving.

    def _save(self, epoch: int, step: int, *, is_finished=False, beside=False):
        strategy = self.model.distribute_strategy
        is_cut = is_finished and self._cut is not None
        if traits.keeps_own_pace(strategy) and not is_cut:
            num_done = self._step_function.finish()
            if step and num_done is None:  # The epoch is over, which `fit` has not seen yet.
                return
            step = num_done if step else 0  # Workers are ahead of `fit`.
        self._is_due = False
        arrays = self._read_variables()
        if is_cut:
            arrays |= self._cut
        self._note_updates()
        state = self._training.data_state(begins_epoch=step == 0 and not is_finished)
        if not peers.is_chief(strategy):
            return
        if state:
            arrays[_DATA_STATE] = np.frombuffer(zlib.compress(state[1], level=1), np.uint8)
        states, of_callbacks = callback_states.read(self._callbacks)
        record = {
            **self._record(epoch, step, is_finished=is_finished),
            "num_iterators": state and state[0],
            "callbacks": states,
        }
        write = self._writer.write_beside if beside else self._writer.write
        number = self._num_before + self._num_updates
        write(number, record, arrays | of_callbacks, self._save_weights)

    def _save_weights(self, file):
        with keras_adapter.taken_as_built(self.model):
            self.model.save_weights(file)

    def _read_variables(self) -> dict[str, np.ndarray]:
        """Returns what Keras does not save; all workers must call it.

        Each replica may have values of its own.
        """
        apart = variables.weights_apart(self.model)
        named = apart | variables.variables_of(self.model)
        return variables.read(self.model.distribute_strategy, named)

    def _note_updates(self):
        updates = updates_of(self.model)
        if updates < self._num_updates:  # A callback has compiled the model within this `fit`.
            self._num_before += self._num_updates
        self._num_updates = updates

    def _record(self, epoch: int, step: int, *, is_finished: bool) -> dict[str, Any]:
        """Returns where the training is, and what it is."""
        is_cut = is_finished and self._cut is not None
        return {
            "epoch": epoch,
            "step": step,
            "is_finished": is_finished,
            # Those from before an epoch that goes on: its own come again.
            "num_logged": self._num_logged if is_cut else None,
            "monitored": {self.monitor: self._monitored} if step == 0 or is_finished else {},
            "run": self._run,
            "fit": self._fit,
            "first_epoch": self._first_epoch,
            "updates": self._num_updates,
            "epochs": self._epochs(),
            "history": histories.read(self._history),
            "variables": variables.signature_of(self.model),
            "metrics": variables.metrics_of(self.model),
            "other_optimizers": variables.other_optimizers_of(self.model),
            "batch_size": self._batch_size,
            "learning_rates": self._first_rates,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"keras": keras.__version__, "tensorflow": tf.__version__},
        }

    @property
    def _history(self):
        return getattr(self.model, "history", None)  # A list of callbacks can be without.

    def _epochs(self) -> int:
        return (self.params or {}).get("epochs", sys.maxsize)

    def _key(self) -> str:
        return self.directory if "://" in self.directory else os.path.realpath(self.directory)

    def _say(self, line: str):
        if peers.is_chief(self.model.distribute_strategy):
            say(line)


def _state_of_data(saved: Saved) -> tuple[int, bytes] | None:
    """Returns the state of `DataPlace` that a checkpoint holds."""
    if _DATA_STATE not in saved.arrays:
        return None
    return saved.record["num_iterators"], zlib.decompress(saved.arrays[_DATA_STATE].tobytes())


def _absolute(path: str) -> str:
    """Returns a path that stays the same if a callback changes the working directory."""
    return path if "://" in path else os.path.abspath(path)


def _mode_of(monitor: str) -> str:
    return "max" if any(word in monitor.lower() for word in _RISING) else "min"
