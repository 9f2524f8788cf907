"""Functions of TensorFlow for what our steps trace."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph_function(method: Callable, **kwargs: Any):
    """Returns a tf.function of `method`, without AutoGraph.

    TensorFlow counts traces by the code of a function, and would warn of retracing when the methods
    of a few models have been traced once each; a partial has no code of its own.
    """
    return tf.function(functools.partial(method), autograph=False, **kwargs)


def rare_cond(is_due: tf.Tensor, act: Callable, otherwise: Callable = lambda: None):
    """Returns `tf.cond(is_due, act, otherwise)`, where `act` stays one operation of the graph.

    For what a step does only now and then: TensorFlow visits every operation behind a condition
    also where it is false, and takes longer for many of them than a small network for its step.
    """
    if tf.executing_eagerly():  # It would be traced anew each time.
        return tf.cond(is_due, act, otherwise)
    call = tf.function(act, autograph=False, experimental_attributes={"_noinline": True})
    return tf.cond(is_due, call, otherwise)
