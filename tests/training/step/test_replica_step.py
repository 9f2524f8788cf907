"""What a replica knows of the global batch while its step is traced."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.step import replica_step
from kerasdist.training.step.update_callback import UpdateCallback
from tests import strategies
from tests.strategies import each_strategy

X = np.arange(1, 6, dtype="float32")


def shares_of(strategy, size=5):
    return batches.shares_of(tf.constant(X[:size]), strategy)


@each_strategy
@pytest.mark.parametrize("size", [1, 5])
def test_shares_add_up_to_one_over_the_global_batch(strategy, size):
    def step(data):
        now = replica_step.current()
        assert now is not None
        return tf.constant(now.share), tf.constant([now.num_examples, now.global_num_examples])

    result = replica_step.run(strategy, step, shares_of(strategy, size))

    shares, numbers = zip(*result.outputs, strict=True)
    assert sum(map(float, shares)) == pytest.approx(1)
    assert sum(int(own) for own, _ in numbers) == size
    assert {int(total) for _, total in numbers} == {size}
    assert result.num_examples == size


def test_a_step_ends_with_an_error_too():
    strategy = strategies.get("one device")

    def step(data):
        assert replica_step.current() is not None
        raise KeyError

    with pytest.raises(KeyError):
        replica_step.run(strategy, step, shares_of(strategy))

    assert replica_step.current() is None
    assert replica_step.losses() == {}
    assert replica_step.divisors() == []


@each_strategy
def test_tensors_are_summed_over_the_replicas_with_examples_and_keep_their_shapes(strategy):
    def step(data):
        return replica_step.sum_over_replicas([tf.reduce_sum(data), tf.ones([2, 1])])

    result = replica_step.run(strategy, step, shares_of(strategy, size=1))

    for total, ones in result.outputs:
        assert float(total) == 1.0
        assert ones.numpy().tolist() == [[1.0], [1.0]]


def test_a_replica_without_examples_leaves_its_states_as_they_are():
    strategy = strategies.get("4 replicas")
    with strategy.scope():
        state = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(batch):
        shares = batches.shares_of(batch, strategy)
        replica_step.run(
            strategy, lambda data: state.assign_add(1.0), shares, states_of_examples=[state]
        )

    run(X[:2])

    # Replicas 0 and 2 have one example each.
    assert [float(each) for each in strategy.experimental_local_results(state)] == [1, 0, 1, 0]


@each_strategy
def test_a_step_that_updates_without_the_optimizer_is_refused_with_callbacks(strategy):
    with pytest.raises(RuntimeError, match="UpdateCallback takes part in"):
        replica_step.run(strategy, tf.identity, shares_of(strategy), callbacks=(UpdateCallback(),))


def test_a_step_that_is_a_function_keeps_its_name_where_it_is_inlined():
    @tf.function
    def my_step(data):
        return data

    inlined = replica_step.inlined(my_step, strategies.get("2 replicas"))

    assert inlined is not my_step
    assert inlined.__name__ == "my_step"
