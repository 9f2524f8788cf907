"""Variables that are made late: in the first trace of a step, or inside `fit`.

Plain Keras makes the variables of a model that nobody has built in the first trace of its step. So
do we, but for what stands in the way: a variable that a trace makes on several replicas or workers
waits for others that are not there. So each of them is made at once, outside of the trace, as if
the user had made it in the scope. See `model_step.TraceAgainError` for what has asked for it too
early.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import scopes


@contextlib.contextmanager
def made_at_once(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Lets variables that the replicas ask for while they are traced be made outside of the trace.

    Args:
        strategy: Whose replicas are traced inside.
    """

    def create(next_creator: Callable, **kwargs: Any):
        if _is_of_graph(kwargs.get("initial_value")):  # Of the trace: cannot be known outside.
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
