"""Where an update computes with gradients that are on several servers."""

import pytest
import tensorflow as tf

from kerasdist.training.synchronous_servers import placement

SERVERS = ["/job:ps/task:0/device:CPU:0", "/job:ps/task:1/device:CPU:0"]


@pytest.fixture
def gradients():
    """Two, a large and a small one, each on its server, in a graph that nobody runs."""
    with tf.Graph().as_default():
        values = []
        for device, shape in zip(SERVERS, ([20, 3], [3]), strict=True):
            with tf.device(device):
                values.append(tf.zeros(shape))
        yield values


def test_each_gradient_is_changed_where_it_is(gradients):
    with placement.beside_inputs():
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(each)) for each in gradients]))
        clipped = [each / norm for each in gradients]

    assert [each.device for each in clipped] == [each.device for each in gradients]
    squares = [each for each in clipped[0].graph.get_operations() if each.type == "Square"]
    assert [each.device for each in squares] == [each.device for each in gradients]


def test_what_has_several_inputs_is_beside_the_largest(gradients):
    large, small = gradients
    with placement.beside_inputs():
        assert (small + large).device == large.device


def test_a_condition_knows_where_what_comes_into_it_is(gradients):
    found = []

    def double():
        found.append(gradients[1] * 2)
        return found[0]

    with placement.beside_inputs():
        tf.cond(tf.equal(tf.reduce_sum(gradients[0]), 0), double, lambda: gradients[1])

    assert found[0].device == gradients[1].device


def test_what_says_where_it_runs_and_what_is_of_a_variable_is_left_alone(gradients):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3])
    with placement.beside_inputs():
        tf.raw_ops.AssignVariableOp(resource=handle, value=gradients[1])
        with tf.device(SERVERS[0]):
            moved = gradients[1] * 2

    assert moved.device == gradients[0].device
    (assign,) = [each for each in moved.graph.get_operations() if "Assign" in each.type]
    assert assign.device == ""
