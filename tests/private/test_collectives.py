"""The private names of sums and broadcasts are where they were, and do what they did."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.ops import collective_ops

from kerasdist.private import collectives


def test_several_workers_get_first_values_through_the_functions_that_are_replaced():
    source = inspect.getsource(collective_all_reduce_strategy.CollectiveAllReduceExtended)

    assert "collective_ops.broadcast_send(" in source
    assert "collective_ops.broadcast_recv(" in source


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e5m2", "int8", "uint8", "int16", "float32", "int64", "bool"]
)
def test_what_is_broadcast_comes_in_its_own_dtype(monkeypatch, dtype):
    sent = []
    monkeypatch.setattr(collective_ops, "broadcast_send", lambda value, *args: sent.append(value))
    monkeypatch.setattr(collective_ops, "broadcast_recv", lambda *args: sent[0])
    value = tf.cast(tf.constant([0, 0.5, 96]), dtype)  # 96 is a float8, too.

    with collectives.wide_broadcasts():
        collective_ops.broadcast_send(value, value.shape, value.dtype, 2, 1, 1)
        received = collective_ops.broadcast_recv(value.shape, value.dtype, 2, 1, 1)

    assert sent[0].dtype in (tf.bool, tf.float32, tf.int32, tf.int64)
    assert received.dtype == value.dtype
    assert np.array_equal(received, value)


def test_what_tensorflow_does_not_call_floating_is_broadcast_with_its_fractions():
    class Float8:  # As with versions of ml_dtypes whose float8 is none of numpy's kinds.
        size, is_floating, is_integer = 1, False, False

    assert collectives._sendable(Float8()) == tf.float32  # ty: ignore[invalid-argument-type]


def test_what_a_tape_records_is_known():
    assert not collectives.is_recorded()
    with tf.GradientTape() as tape:
        assert collectives.is_recorded()
        with tape.stop_recording():
            assert not collectives.is_recorded()
