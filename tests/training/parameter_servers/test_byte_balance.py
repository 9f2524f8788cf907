"""Variables go to the parameter server that holds the fewest bytes."""

import functools

import tensorflow as tf

from kerasdist.training.parameter_servers.byte_balance import ByteBalance


class Placed:
    """What counts of a variable on a parameter server."""

    def __init__(self, server, in_parts, next_creator, *, shape, **kwargs):
        self.device = f"/job:ps/replica:0/task:{server}/device:CPU:0"
        self.dtype, self.shape = tf.float32, tf.TensorShape(shape)
        self.server, self.in_parts = server, in_parts


def test_a_large_variable_is_alone_on_its_server():
    create = functools.partial(ByteBalance(2).create, Placed, None)

    kernel = create(shape=[100, 10], trainable=True)
    biases = [create(shape=[10], trainable=True) for _ in range(3)]

    assert [each.server for each in (kernel, *biases)] == [0, 1, 1, 1]


def test_weights_alone_may_be_in_parts():
    create = functools.partial(ByteBalance(2).create, Placed, None)

    assert create(shape=[], trainable=True).in_parts
    assert not create(shape=[], trainable=False).in_parts
