"""Functions of TensorFlow for what our steps trace."""

import functools

import tensorflow as tf


def graph_function(method, **kwargs):
    """Returns a tf.function of `method`, without AutoGraph.

    TensorFlow counts traces by the code of a function, and would warn of retracing when the methods
    of a few models have been traced once each; a partial has no code of its own.
    """
    return tf.function(functools.partial(method), autograph=False, **kwargs)
