"""kerasdist.private.worker_variables: what TensorFlow's variables of one process do."""

import inspect
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from kerasdist.private import worker_variables


def test_the_class_of_variables_takes_the_arguments_that_are_given():
    parameters = inspect.signature(resource_variable_ops.BaseResourceVariable.__init__).parameters
    given = {"handle", "handle_name", "unique_id", "shape", "dtype", "in_graph_mode", "trainable"}

    assert given <= parameters.keys()


def test_variables_of_one_name_are_one():
    @tf.function
    def count():
        variable: Any = worker_variables.variable(tf.TensorSpec([], tf.int64), "counted")
        is_there = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
        before = tf.cond(is_there, variable.read_value, lambda: tf.constant(0, tf.int64))
        variable.assign(before + 1)
        return before

    assert [int(count()) for _ in range(3)] == [0, 1, 2]


def test_what_is_assigned_to_a_copy_is_assigned_to_the_original():
    original: Any = tf.Variable([1.0, 2.0])

    @tf.function
    def update():
        copy: Any = worker_variables.copy(original, "copied", original.read_value())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(copy * copy)
        copy.assign_sub(tape.gradient(loss, copy))
        return copy.read_value()

    assert update().numpy().tolist() == [-1.0, -2.0]
    assert original.numpy().tolist() == [-1.0, -2.0]


def test_numbers_are_0_until_they_are_noted():
    @tf.function
    def noted():
        before = worker_variables.numbers("noted", 2)
        worker_variables.note_numbers("noted", tf.add(before, [1, 2]))
        return before

    assert [noted().numpy().tolist() for _ in range(2)] == [[0, 0], [1, 2]]


def test_no_two_names_are_the_same():
    assert len({worker_variables.unique_name() for _ in range(100)}) == 100
