"""What workers hand over of batches, and the mean that an update takes; in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.synchronous_servers.contributions import Contributions, How, Value


@pytest.fixture
def variables():
    """Two small ones, a large one and a table."""
    shapes = ([2, 3], [4], [200, 100], [50, 2])
    return [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]


def stage(contributions, number, gradients, variables, *, weight, num_examples=1, others=()):
    """Stages gradients and other values as the batch with the key `number`."""
    values = [
        Value(gradient, How.MEAN, beside=variable.value)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    contributions.stage(
        tf.cast(number, tf.int64), [*values, *others], weight=weight, num_examples=num_examples
    )


def gradients_of(batch):
    """Returns gradients in which every number says of which batch it is."""
    dense = [tf.fill(shape, float(batch)) for shape in ([2, 3], [4], [200, 100])]
    rows = tf.range(batch + 1)
    slices = tf.IndexedSlices(tf.fill([batch + 1, 2], float(batch)), rows, [50, 2])
    return [*dense, slices]


def key(number):
    return tf.constant(number, tf.int64)


def test_an_update_takes_the_mean_of_the_batches_by_their_weights(variables):
    contributions = Contributions()

    @tf.function
    def of_batch(batch, weight):
        number = tf.cast(batch, tf.int32)
        rows = tf.IndexedSlices(tf.fill([number, 2], batch), tf.range(number), [50, 2])
        dense = [batch * tf.ones(shape) for shape in ([2, 3], [4], [200, 100])]
        examples = [Value(batch, How.SUM)]
        stage(contributions, batch, [*dense, rows], variables, weight=weight, others=examples)

    @tf.function
    def take(first, second):
        return contributions.take([first, second]).values

    for batch, weight in ((1.0, 3), (2.0, 1), (9.0, 5)):
        of_batch(tf.constant(batch), weight)
    *dense, rows, examples = take(key(2), key(1))

    for gradient, shape in zip(dense, ([2, 3], [4], [200, 100]), strict=True):
        np.testing.assert_allclose(gradient, np.full(shape, 1.25))
    np.testing.assert_array_equal(rows.indices, [0, 1, 0])
    np.testing.assert_allclose(rows.values[:, 0], [0.5, 0.5, 0.75])
    assert float(examples) == 3
    assert contributions.count() == 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (How.MEAN, [2.5, 1.5]),
        (How.MEAN_OF_EXAMPLES, [9 / 3, 4 / 3]),
        (How.SUM, [5, 3]),
        (How.FIRST, [1, 2]),
        (How.LARGEST, [4, 2]),
    ],
)
def test_what_values_of_several_batches_become(how, expected):
    contributions, variable = Contributions(), keras.Variable([0.0, 0.0])
    for number, value, weight, num_examples in ((1, [4, 1], 1, 2), (0, [1, 2], 1, 1)):
        contributions.stage(
            key(number),
            [Value(tf.constant(value, tf.float32), how, beside=variable.value)],
            weight=weight,
            num_examples=num_examples,
        )

    taken = contributions.take([key(0), key(1)])

    np.testing.assert_allclose(taken.values[0], expected)
    assert taken.num_examples.numpy() == 3


def test_a_batch_without_weight_counts_for_nothing(variables):
    contributions, (_, variable, *_) = Contributions(), variables
    stage(contributions, 0, [tf.fill([4], np.nan)], [variable], weight=0)
    stage(contributions, 1, [tf.ones([4])], [variable], weight=2)

    taken = contributions.take([key(0), key(1)])

    np.testing.assert_array_equal(taken.values[0], np.ones(4))


def test_batches_count_alike_if_none_has_a_weight(variables):
    contributions, (_, variable, *_) = Contributions(), variables
    for number in range(2):
        stage(contributions, number, [tf.fill([4], 2.0 * number)], [variable], weight=0)

    taken = contributions.take([key(0), key(1)])

    np.testing.assert_array_equal(taken.values[0], np.ones(4))


def test_what_is_dropped_or_cleared_is_gone(variables):
    contributions = Contributions()
    for number in range(3):
        stage(contributions, number, gradients_of(number), variables, weight=1)

    contributions.drop(key(1))
    assert contributions.count() == 2
    contributions.clear()
    assert contributions.count() == 0


def test_gradients_of_other_weights_than_before_are_refused(variables):
    contributions = Contributions()
    stage(contributions, 0, gradients_of(0), variables, weight=1)

    with pytest.raises(ValueError, match="gradients of the same variables for every batch"):
        stage(contributions, 1, gradients_of(1)[:2], variables[:2], weight=1)
