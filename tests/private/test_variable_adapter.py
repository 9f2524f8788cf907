"""The private names of variables are where they were, and do what they did."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from kerasdist.private import variable_adapter
from tests import strategies


@pytest.mark.parametrize("kind", ["of two devices", "in two parts"])
def test_variables_are_numbers_and_arrays_inside_a_scope_too(kind):
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        variable: Any = tf.Variable([2.5])
    if kind == "in two parts":
        halves = [tf.Variable([value]) for value in (2.5, 3.5)]
        variable = variable_adapter.ShardedVariable(halves)

    with strategy.scope():
        np.testing.assert_array_equal(np.array(variable), variable.numpy())
        assert np.asarray(variable, "float64").dtype == "float64"
        scalar: Any = tf.Variable(2.5)
        assert (float(scalar), int(scalar), np.array(scalar).shape) == (2.5, 2, ())


def test_a_checkpoint_of_objects_holds_the_names_of_its_variables(tmp_path):
    path = tf.train.Checkpoint(weight=tf.Variable(1.0, name="w")).write(str(tmp_path / "objects"))
    content = tf.train.load_variable(path, "_CHECKPOINTABLE_OBJECT_GRAPH")

    names = variable_adapter.full_names(content)
    assert names["weight/.ATTRIBUTES/VARIABLE_VALUE"] == "w"


def test_the_class_of_variables_takes_the_arguments_that_are_given():
    parameters = inspect.signature(resource_variable_ops.BaseResourceVariable.__init__).parameters
    given = {"handle", "handle_name", "unique_id", "shape", "dtype", "in_graph_mode", "trainable"}

    assert given <= parameters.keys()


def test_variables_of_one_name_are_one():
    @tf.function
    def count():
        variable: Any = variable_adapter.worker_variable(tf.TensorSpec([], tf.int64), "counted")
        is_there = tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
        before = tf.cond(is_there, variable.read_value, lambda: tf.constant(0, tf.int64))
        variable.assign(before + 1)
        return before

    assert [int(count()) for _ in range(3)] == [0, 1, 2]


def test_what_is_assigned_to_a_copy_is_assigned_to_the_original():
    original: Any = tf.Variable([1.0, 2.0])

    @tf.function
    def update():
        copy: Any = variable_adapter.worker_copy(original, "copied", original.read_value())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(copy * copy)
        copy.assign_sub(tape.gradient(loss, copy))
        return copy.read_value()

    assert update().numpy().tolist() == [-1.0, -2.0]
    assert original.numpy().tolist() == [-1.0, -2.0]


def test_numbers_are_0_until_they_are_noted():
    @tf.function
    def noted():
        before = variable_adapter.worker_numbers("noted", 2)
        variable_adapter.note_worker_numbers("noted", tf.add(before, [1, 2]))
        return before

    assert [noted().numpy().tolist() for _ in range(2)] == [[0, 0], [1, 2]]


def test_no_two_names_are_the_same():
    assert len({variable_adapter.unique_name() for _ in range(100)}) == 100
