"""One sum of the gradients over the replicas, each weighed by its examples."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.step import gradient_aggregation, replica_step
from tests import strategies
from tests.strategies import each_strategy

X = np.arange(1, 6, dtype="float32")


def run(strategy, step, size=5, **arguments):
    """Returns what `step(data, replica_step)` returns on each replica."""
    shares = batches.shares_of(tf.constant(X[:size]), strategy)
    return replica_step.run(
        strategy, lambda data: step(data, replica_step.current()), shares, **arguments
    ).outputs


def aggregate(gradient, current):
    return gradient_aggregation.aggregate([gradient, None], current)


@each_strategy
@pytest.mark.parametrize("size", [1, 5])
def test_every_replica_gets_the_gradient_of_the_global_batch(strategy, size):
    def step(data, current):
        return aggregate(tf.reduce_mean(data), current)

    for mean, absent in run(strategy, step, size):
        np.testing.assert_allclose(mean, X[:size].mean(), rtol=1e-6)
        assert absent is None


def test_what_a_replica_without_examples_computes_does_not_count():
    def step(data, current):
        gradient = tf.where(current.num_examples > 0, data[0], np.nan)
        return aggregate(gradient, current)[0]

    outputs = run(strategies.get("4 replicas"), step, size=1)

    assert [float(each) for each in outputs] == [1.0] * 4


@each_strategy
def test_a_loss_that_is_weighed_gives_the_same_gradient(strategy):
    def step(data, current):
        loss = gradient_aggregation.scale_loss(lambda _, loss: loss, None, tf.reduce_mean(data))
        return aggregate(loss, current)[0]

    for mean in run(strategy, step, weighs_loss=True):
        np.testing.assert_allclose(mean, X.mean(), rtol=1e-6)


def test_outside_of_steps_a_loss_stays_as_it_is():
    assert gradient_aggregation.scale_loss(lambda _, loss: loss, None, 3.0) == 3.0


def test_values_are_mapped_where_a_gradient_has_some():
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 7]), [9, 1])

    mapped = gradient_aggregation.map_values(slices, lambda values: values * 2)

    assert mapped.values.numpy().tolist() == [[2.0], [4.0]]
    assert mapped.indices is slices.indices
    assert gradient_aggregation.map_values(None, lambda values: values * 2) is None
