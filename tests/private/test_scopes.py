"""In whose scope something was made is known, and what is taken into one keeps its values."""

import contextlib

import keras
import pytest
import tensorflow as tf

from kerasdist.private import scopes
from tests import strategies


def test_what_is_made_in_a_scope_says_so_and_what_a_variable_is_made_for():
    makers = []

    class Layer(keras.layers.Layer):
        def build(self, shape):
            makers.extend(scopes.makers())

    strategy = strategies.get("one device")
    with strategy.scope():
        made = [layer := Layer(), keras.metrics.Mean(), keras.optimizers.SGD()]

    layer.build((1, 1))

    assert [scopes.strategy_of(each) for each in made] == [strategy] * 3
    assert scopes.strategy_of(keras.layers.Dense(1)) is None
    assert makers == [layer]


def test_a_model_whose_strategy_is_hidden_has_it_again_also_after_an_error():
    strategy = strategies.get("one device")
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

    with pytest.raises(KeyError), scopes.strategy_hidden(model):
        assert model._distribute_strategy is None
        raise KeyError

    assert scopes.strategy_of(model) is strategy


def test_a_metric_that_is_taken_into_a_scope_keeps_what_it_has_counted():
    metric = keras.metrics.Mean()
    metric.update_state([3.0, 5.0])

    scopes.adopt_variables(metric.variables, strategies.get("3 replicas"))

    assert float(metric.result()) == 4


def test_strategy_of_knows_models_and_optimizers():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model, optimizer = keras.Sequential([]), keras.optimizers.SGD()

    assert scopes.strategy_of(model) is strategy
    assert scopes.strategy_of(optimizer) is strategy
    assert scopes.strategy_of(keras.Sequential([])) is None


def test_first_values_of_variables_are_computed_in_the_context():
    entered = []

    @contextlib.contextmanager
    def context():
        entered.append(True)
        yield

    with scopes.around_initializers(context):
        keras.layers.Dense(1).build((None, 2))

    assert len(entered) == 2  # The kernel and the bias.


def test_a_variable_of_replicas_holds_one_from_outside():
    outside, strategy = tf.Variable(1.0), strategies.get("3 replicas")

    with scopes.held_by_first_replica(outside, strategy), strategy.scope():
        made = tf.Variable(
            2.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )

    first, *others = strategy.experimental_local_results(made)
    assert first is outside
    assert made.synchronization == tf.VariableSynchronization.ON_READ
    assert [float(each) for each in (first, *others)] == [2.0] * 3


@pytest.mark.parametrize("deployment", ["one device", "2 replicas"])
def test_a_variable_knows_the_strategy_that_it_was_created_in(deployment):
    strategy = strategies.get(deployment)
    with strategy.scope():
        inside = tf.Variable(1.0)

    assert scopes.owner_of(inside) is strategy
    assert scopes.owner_of(tf.Variable(1.0)) is None
