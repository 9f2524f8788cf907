"""Steps run on every replica with its share, and leave as they are what does not count."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.hooks.update_callback import UpdateCallback
from kerasdist.training.replica.replicas import StepOptions
from kerasdist.training.step import replica_run
from tests import strategies
from tests.strategies import each_strategy

X = np.arange(1, 6, dtype="float32")


def shares_of(strategy):
    return batches.shares_of(tf.constant(X), strategy)


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
        states = replica_run.States(of_examples=[state])
        replica_run.run(strategy, lambda data: state.assign_add(1.0), shares, states=states)

    run(X[:2])

    # Replicas 0 and 2 have one example each.
    assert [float(each) for each in strategy.experimental_local_results(state)] == [1, 0, 1, 0]


@each_strategy
def test_a_step_that_updates_without_the_optimizer_is_refused_with_callbacks(strategy):
    with pytest.raises(RuntimeError, match="UpdateCallback takes part in"):
        replica_run.run(
            strategy,
            tf.identity,
            shares_of(strategy),
            options=StepOptions(callbacks=(UpdateCallback(),)),
        )


def test_a_step_that_is_a_function_keeps_its_name_where_it_is_inlined():
    @tf.function
    def my_step(data):
        return data

    inlined = replica_run.inlined(my_step, strategies.get("2 replicas"))

    assert inlined is not my_step
    assert inlined.__name__ == "my_step"
