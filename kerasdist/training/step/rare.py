"""What a step does only now and then, at little cost for the steps between."""

import tensorflow as tf


def cond(is_due, act, otherwise=lambda: None):
    """Returns `tf.cond(is_due, act, otherwise)`, where `act` stays one operation of the graph.

    TensorFlow visits every operation behind a condition also where it is false, and takes longer
    for many of them than a small network for its step.
    """
    call = tf.function(act, autograph=False, experimental_attributes={"_noinline": True})
    return tf.cond(is_due, call, otherwise)
