"""Decides how and where a strategy makes variables, and when.

What is made in a scope belongs to it: its variables are made there, whenever they come. And Keras'
choice of how they are made may cost a message, or lose statistics.

Plain Keras makes the variables of a model that nobody has built in the first trace of its step. So
do we, but for what stands in the way: a variable that a trace makes on several replicas or workers
waits for others that are not there. So each of them is made at once, outside of the trace, as if
the user had made it in the scope. See `model_step.TraceAgainError` for what has asked for it too
early.
"""

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.lifetime.peer_failure import LOST_TASK_ERRORS
from kerasdist.private import collectives, scopes, strategy_adapter
from kerasdist.support import memory
from kerasdist.training.hooks import forgotten_scope


class WorkersDifferError(ValueError):
    """The workers do not make the same variables."""


def difference_found() -> ValueError | None:
    """Returns the `WorkersDifferError` after which none of their variables is right.

    Keras swallows what a layer raises that it builds in a trace, and fails later, of another thing.
    """
    return memory.PROCESS.workers_differ


def error_of_workers(error: BaseException) -> BaseException | None:
    """Returns what the other workers have to do with an error of making variables.

    A `WorkersDifferError`, or TensorFlow's error of a lost task: `error` or one that it was raised
    from, as Keras wraps what a layer raises. None where the model alone is the reason.
    """
    of_workers = (WorkersDifferError, *LOST_TASK_ERRORS)
    return next((each for each in _chain(error) if isinstance(each, of_workers)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    # Also what was hidden by `from None`, as Keras does around the call of a layer.
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def creator_for(strategy: tf.distribute.Strategy) -> Callable:
    """Returns create(original, next_creator, **kwargs) for the variables of `strategy`.

    Its arguments are TensorFlow's own function for these variables and what it is given.
    """
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return _create_on_workers if is_multi_worker else _create


def note_scope(original: Callable, made: Any, *args: Any, **kwargs: Any):
    """Stands before the constructor of layers and of metrics: notes in whose scope they are."""
    strategy = tf.distribute.get_strategy()
    if strategy_adapter.is_adapted(strategy):
        scopes.note_strategy(made, strategy)
        forgotten_scope.note_use(strategy)
    return original(made, *args, **kwargs)


def make_variable(original: Callable, variable: keras.Variable, value: Any):
    """Stands before the making of a variable, which may come after the scope: `adapt`, `add`.

    It is made in the scope of the innermost of what it is for that has one.
    """
    strategies = map(scopes.strategy_of, scopes.makers())
    with _scope_of(next(filter(strategy_adapter.is_adapted, strategies), None)):
        return original(variable, value)


def make_slot(original: Callable, optimizer: keras.optimizers.Optimizer, *args: Any, **kwargs: Any):
    """Stands before the making of a slot, which has to be in the scope of its optimizer."""
    with _scope_of(scopes.strategy_of(optimizer)):
        return original(optimizer, *args, **kwargs)


def _scope_of(strategy: tf.distribute.Strategy | None) -> contextlib.AbstractContextManager:
    # A trace has no scope, and belongs to a replica or is left (`made_at_once`).
    if strategy is None or tf.distribute.has_strategy():
        return contextlib.nullcontext()
    return strategy.scope() if strategy_adapter.is_adapted(strategy) else contextlib.nullcontext()


def _create(original: Callable, next_creator: Callable, **kwargs: Any):
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        # Step counters and learning rates: every replica computes the same value, no broadcast.
        kwargs["aggregation"] = tf.VariableAggregation.NONE
    elif _is_moving_statistic(kwargs):
        # See batch_statistics: one value per replica, which reads and saves as their mean.
        kwargs["aggregation"] = tf.VariableAggregation.MEAN
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    return original(next_creator, **kwargs)


def _create_on_workers(original: Callable, next_creator: Callable, **kwargs: Any):
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        kwargs["aggregation"] = tf.VariableAggregation.NONE
    # Moving statistics stay one value per replica: to read their mean, all workers would have to.
    try:
        with collectives.wide_broadcasts():
            return original(next_creator, **kwargs)
    except tf.errors.OpError as error:
        told = _as_disagreement(error, _name_of(kwargs))
        if told is None:
            raise
        memory.PROCESS.workers_differ = memory.PROCESS.workers_differ or told
        raise told from error


def _name_of(kwargs: dict) -> str:
    layer, name = scopes.layer_being_built(), kwargs.get("name")
    return f"{layer.name}/{name}" if layer is not None else str(name)


def _as_disagreement(error: tf.errors.OpError, name: str) -> WorkersDifferError | None:
    """Returns what TensorFlow says where workers make different variables; None of anything else.

    Each worker gets the first value of a variable from the chief.
    """
    shapes = re.search(
        r"Shape mismatch in the collective.*?/task:(\d+)/.*? expected shape (\S+) but another "
        r"member in the group expected shape (\[[^]]*\])",
        error.message,
    )
    if shapes:
        index, one, other = shapes.groups()
        what = f"{one} on the task of index {index}, {other} on another one"
    elif re.search(r"Collective instance \d+ expected type", error.message):
        what = "a variable here, and a sum over all workers on another task"
    else:
        return None
    return WorkersDifferError(
        f"The workers do not build the same model and optimizer. They part at the variable "
        f"{name!r}: {what}. Build the same layers in the same order on every worker, and compile "
        "with the same optimizer and metrics."
    )


def _is_moving_statistic(kwargs: dict) -> bool:
    layer = scopes.layer_being_built()
    return isinstance(layer, keras.layers.BatchNormalization) and not kwargs.get("trainable")


@contextlib.contextmanager
def made_at_once(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Lets variables that the replicas ask for while they are traced be made outside of the trace.

    Args:
        strategy: Whose replicas are traced inside.
    """

    def create(next_creator: Callable, **kwargs: Any):
        if _is_of_graph(kwargs.get("initial_value")):  # It cannot be known outside of the trace.
            return next_creator(**kwargs)
        beside = kwargs.pop("colocate_with", None)
        with tf.init_scope(), scopes.outside_scopes(), strategy.scope():
            if beside is None:
                return tf.Variable(**kwargs)
            with strategy.extended.colocate_vars_with(beside):
                return tf.Variable(**kwargs)

    if tf.executing_eagerly():
        yield
        return
    with strategy.scope(), tf.variable_creator_scope(create):
        yield


def _is_of_graph(value: Any) -> bool:
    return tf.is_tensor(value) and tf.is_symbolic_tensor(value)
