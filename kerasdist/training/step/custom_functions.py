"""Takes in what an overridden `make_train_function` makes in the place of Keras' function.

Keras' fit calls `make_train_function` and then, for each step, what that left in `train_function`.
An override that goes on to `super().make_train_function()` gets a step of ours, whatever it wraps
around it. One that does not runs its own step, which knows of no replicas: it works where there is
one device, and here it is made to look like a step of ours to the progress bar and to callbacks.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_routes
from kerasdist.support import memory
from kerasdist.support.replaced_method import method_replaced
from kerasdist.training.context import peers, running_call, traits
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.hooks.lazy_logs import LazyLogs, as_numbers, nesting_of
from kerasdist.training.hooks.train_function import EnclosingFunction, TrainFunction
from kerasdist.training.losses.loss_sums import LossSums
from kerasdist.training.step.step_times import StepTimes


@contextlib.contextmanager
def adapted(model: keras.Model) -> Generator[None]:
    """Looks, inside, at what overridden `make_train_function` and `make_test_function` make.

    Args:
        model: A model of one of our strategies.
    """
    with contextlib.ExitStack() as stack:
        for kind in ("train", "test"):
            name = f"make_{kind}_function"
            if keras_routes.is_overridden(model, name) and not _is_adapted(model, name):
                stack.enter_context(method_replaced(model, name, _make, model, kind))
        yield


def _is_adapted(model: keras.Model, name: str) -> bool:
    """Whether it is already, as where `fit` evaluates."""
    return getattr(vars(model).get(name), "func", None) is _make


def note_ours(function: TrainFunction) -> None:
    """Notes a function of ours, which an override may be about to wrap."""
    # Else it, and so its model, would live on here.
    if memory.THREAD.looks_for_function:
        memory.THREAD.found_function = function


def _make(method: Callable, model: keras.Model, kind: str, *args: Any, **kwargs: Any):
    name = f"{kind}_function"
    callbacks = running_call.update_callbacks_of(model) if kind == "train" else ()
    before = getattr(model, name)
    if isinstance(before, TrainFunction) and before.callbacks != callbacks:
        setattr(model, name, None)  # Not every override takes `force`.
    memory.THREAD.found_function, memory.THREAD.looks_for_function = None, True
    try:
        method(*args, **kwargs)
        ours = memory.THREAD.found_function
    finally:
        memory.THREAD.found_function, memory.THREAD.looks_for_function = None, False
    function = getattr(model, name)
    if ours is not None:
        function = function if function is ours else WrappedFunction(function, ours)
    elif isinstance(function, TrainFunction):  # It was made in the `fit` before.
        function.restart()
    else:
        _check(model, kind, callbacks)
        function = CustomFunction(function, model.distribute_strategy)
    setattr(model, name, function)
    return function


def _check(model: keras.Model, kind: str, callbacks: tuple):
    strategy = model.distribute_strategy
    is_remote = traits.has_remote_variables(strategy)
    number = peers.num_workers(strategy) if is_remote else strategy.num_replicas_in_sync
    what = (
        f"Model '{model.name}' overrides `make_{kind}_function` without a call of "
        f"`super().make_{kind}_function()`"
    )
    # One device computes what a test_step does for all replicas.
    if is_remote or (kind == "train" and number > 1):
        where = "worker" if is_remote else "replica"
        raise RuntimeError(
            f"{what}, so that no {where} of {number} gets its part of the batch. Override "
            f"`{kind}_step`, which runs on each, and leave `make_{kind}_function` as it is."
        )
    if callbacks:
        names = ", ".join(type(callback).__name__ for callback in callbacks)
        raise RuntimeError(
            f"{what}, where {names} would take part in the update. Override `train_step` instead, "
            "and leave `make_train_function` as it is."
        )


class WrappedFunction(EnclosingFunction):
    """What an override has made around a function of ours.

    Args:
        function: Of the user's own.
        ours: The train or test function inside.
    """

    def __init__(self, function: Callable, ours: TrainFunction):
        super().__init__(ours)
        self._function = function

    def __call__(self, data: Any) -> dict:
        return self._function(data)


class CustomFunction(TrainFunction):
    """A train or test function of the user's own; nobody counts its examples.

    Args:
        function: Takes an iterator over batches, and returns the logs of a step.
        strategy: Of the model.
    """

    def __init__(self, function: Callable, strategy: tf.distribute.Strategy):
        self._function = function
        # The optimizer makes its variables in there. In that of several replicas, what computes
        # would have to be on one of them.
        is_one = strategy.num_replicas_in_sync == 1
        self._scope = strategy.scope if is_one else contextlib.nullcontext
        self.losses, self.times = LossSums(strategy), StepTimes(is_on=False)

    def __call__(self, data: Any) -> dict:
        if not isinstance(data, GlobalBatches):
            return self._call(data)
        # An iterator of tf.data's: a tf.function would be traced anew for each other object.
        logs = self._call(data.source.iterator)
        data.answer(data.num_steps)
        return LazyLogs(lambda: as_numbers(logs), nesting=nesting_of(logs))

    def _call(self, iterator: Any) -> dict:
        with self._scope():
            return self._function(iterator)
