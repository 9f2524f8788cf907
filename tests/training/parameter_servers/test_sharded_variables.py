"""Where variables go; and one in several parts is one to Keras: its gradient, its update, rows."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import keras_optimizers, variable_adapter
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers import sharded_variables

ROWS = np.arange(10, dtype="float32").reshape(5, 2)


def make_sharded() -> Any:
    return variable_adapter.ShardedVariable([tf.Variable(ROWS[:3]), tf.Variable(ROWS[3:])])


def gradient_of(loss, variable):
    with tf.GradientTape() as tape:
        target = loss(variable)
    [gradient] = sharded_variables.gradient(
        tf.GradientTape.gradient, tape, target, [SimpleNamespace(value=variable)]
    )
    return gradient


def test_a_dense_gradient_is_that_of_all_parts():
    gradient = gradient_of(
        lambda variable: tf.reduce_sum(tf.convert_to_tensor(variable) ** 2), make_sharded()
    )

    np.testing.assert_array_equal(gradient, 2 * ROWS)


def test_a_sparse_gradient_counts_rows_from_the_first_part_on():
    gradient = gradient_of(
        lambda variable: tf.reduce_sum(tf.nn.embedding_lookup(variable.variables, [1, 4])),
        make_sharded(),
    )

    expected = np.zeros_like(ROWS)
    expected[[1, 4]] = 1
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)


def test_what_the_loss_does_not_need_has_no_gradient():
    other = tf.constant(1.0)

    assert gradient_of(lambda _: other, make_sharded()) is None


class Slot:
    """A Keras variable that an optimizer keeps beside a sharded one."""

    def __init__(self, beside):
        self._value = make_sharded()
        self._value.lives_beside = beside

    @property
    def value(self):
        return self._value


def dense_gradient():
    return tf.constant([[0, 0], [1, 1], [0, 0], [0, 0], [2, 2]], tf.float32)


def sparse_gradient():
    return tf.IndexedSlices(tf.constant([[1.0, 1], [2, 2]]), tf.constant([1, 4]), [5, 2])


@pytest.mark.parametrize("make_gradient", [dense_gradient, sparse_gradient])
def test_each_part_is_updated_with_its_rows_of_gradient_and_slot(monkeypatch, make_gradient):
    monkeypatch.setattr(keras_optimizers, "know_parts", lambda optimizer, variable: None)
    variable = make_sharded()
    slot = Slot(beside=variable)
    whole = slot.value

    def update(part, gradient, rate):
        part.assign_add(rate * tf.convert_to_tensor(gradient) + slot.value)

    optimizer: Any = SimpleNamespace(variables=[slot])
    sharded_variables.update(optimizer, variable, update, [make_gradient(), 0.5])

    expected = ROWS + 0.5 * dense_gradient() + ROWS
    np.testing.assert_array_equal(tf.convert_to_tensor(variable), expected)
    assert slot.value is whole


def test_outside_of_a_step_each_part_is_updated_with_its_rows_too():
    def stock(part, function, args, kwargs, group):
        function(part, *args, **kwargs)

    def assign(part, value, scale):
        part.assign(scale * value)

    variable, whole = make_sharded(), tf.Variable(ROWS)
    for each in (variable, whole):
        sharded_variables.update_outside(
            stock, each, assign, (dense_gradient(),), {"scale": 2}, True
        )

        np.testing.assert_array_equal(tf.convert_to_tensor(each), 2 * dense_gradient())


def test_rows_of_an_embedding_are_looked_up_in_all_parts():
    layer: Any = SimpleNamespace(
        embeddings=SimpleNamespace(value=make_sharded()), compute_dtype="float16"
    )

    rows = sharded_variables.embed(layer, tf.convert_to_tensor([[4.0, 0.0]]))

    assert rows.dtype == tf.float16
    np.testing.assert_array_equal(rows, ROWS[[[4, 0]]])


def test_slots_are_divided_like_their_weight():
    weight = make_sharded()

    slot = sharded_variables.create(
        lambda _, colocate_with, initial_value, **kwargs: tf.Variable(initial_value),
        make_nothing,
        make_nothing,
        colocate_with=weight,
        initial_value=lambda: tf.constant(ROWS),
    )

    assert slot.lives_beside is weight
    assert [part.shape.as_list() for part in divided_values.parts_of(slot)] == [[3, 2], [2, 2]]
    np.testing.assert_array_equal(tf.convert_to_tensor(slot), ROWS)


def make_nothing(**kwargs):
    raise NotImplementedError


class Placed:
    """What counts of a variable on a parameter server."""

    def __init__(self, server, in_parts, next_creator, *, shape, **kwargs):
        self.device = f"/job:ps/replica:0/task:{server}/device:CPU:0"
        self.dtype, self.shape = tf.float32, tf.TensorShape(shape)
        self.server, self.in_parts = server, in_parts


def test_a_large_variable_is_alone_on_its_server():
    create = functools.partial(sharded_variables.ByteBalance(2).create, Placed, make_nothing)

    kernel = create(shape=[100, 10], trainable=True)
    biases = [create(shape=[10], trainable=True) for _ in range(3)]

    assert [each.server for each in (kernel, *biases)] == [0, 1, 1, 1]


def test_weights_alone_may_be_in_parts():
    create = functools.partial(sharded_variables.ByteBalance(2).create, Placed, make_nothing)

    assert create(shape=[], trainable=True).in_parts
    assert not create(shape=[], trainable=False).in_parts
