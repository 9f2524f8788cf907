"""What workers hand over of batches, and the mean that an update takes; in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.synchronous_servers.contributions import Contributions


@pytest.fixture
def variables():
    """Two small ones, a large one, a table, and one that has no gradient."""
    shapes = ([2, 3], [4], [200, 100], [50, 2], [3])
    return [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]


def gradients_of(batch):
    """Returns gradients in which every number says of which batch it is."""
    dense = [tf.fill(shape, float(batch)) for shape in ([2, 3], [4], [200, 100])]
    rows = tf.range(batch + 1)
    slices = tf.IndexedSlices(tf.fill([batch + 1, 2], float(batch)), rows, [50, 2])
    return [*dense, slices, None]


def key(number):
    return tf.constant(number, tf.int64)


def test_an_update_takes_the_mean_of_the_batches_by_their_weights(variables):
    contributions = Contributions()

    @tf.function
    def stage(batch, number, weight):
        gradients = [
            batch * tf.ones([2, 3]),
            batch * tf.ones([4]),
            batch * tf.ones([200, 100]),
            tf.IndexedSlices(
                tf.fill([tf.cast(batch, tf.int32), 2], batch), tf.range(int_of(batch)), [50, 2]
            ),
            None,
        ]
        contributions.stage(number, gradients, variables, weight=weight, sums={"examples": batch})

    @tf.function
    def take(first, second):
        taken = contributions.take([first, second])
        return taken.gradients, taken.sums

    for batch, weight in ((1.0, 3), (2.0, 1), (9.0, 5)):
        stage(tf.constant(batch), key(int(batch)), weight)
    gradients, sums = take(key(2), key(1))

    for gradient, shape in zip(gradients[:3], ([2, 3], [4], [200, 100]), strict=True):
        np.testing.assert_allclose(gradient, np.full(shape, 1.25))
    np.testing.assert_array_equal(gradients[3].indices, [0, 1, 0])
    np.testing.assert_allclose(gradients[3].values[:, 0], [0.5, 0.5, 0.75])
    assert gradients[4] is None
    assert float(sums["examples"]) == 3
    assert contributions.count() == 1


def int_of(number):
    return tf.cast(number, tf.int32)


def test_a_batch_without_weight_counts_for_nothing(variables):
    contributions, (_, variable, *_) = Contributions(), variables
    contributions.stage(key(0), [tf.fill([4], np.nan)], [variable], weight=0)
    contributions.stage(key(1), [tf.ones([4])], [variable], weight=2)

    taken = contributions.take([key(0), key(1)])

    np.testing.assert_array_equal(taken.gradients[0], np.ones(4))


def test_batches_count_alike_if_none_has_a_weight(variables):
    contributions, (_, variable, *_) = Contributions(), variables
    for number in range(2):
        contributions.stage(key(number), [tf.fill([4], 2.0 * number)], [variable], weight=0)

    taken = contributions.take([key(0), key(1)])

    np.testing.assert_array_equal(taken.gradients[0], np.ones(4))


def test_what_is_dropped_or_cleared_is_gone(variables):
    contributions = Contributions()
    for number in range(3):
        gradients = gradients_of(number)
        contributions.stage(key(number), gradients, variables, weight=1)

    contributions.drop(key(1))
    assert contributions.count() == 2
    contributions.clear()
    assert contributions.count() == 0


def test_gradients_of_other_weights_than_before_are_refused(variables):
    contributions = Contributions()
    contributions.stage(key(0), gradients_of(0), variables, weight=1)

    with pytest.raises(ValueError, match="gradients of the same variables for every batch"):
        contributions.stage(key(1), [None] * 5, variables, weight=1)
