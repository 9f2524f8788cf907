"""Variables of a strategy read and are updated as training needs it."""

import keras
import tensorflow as tf

from tests import strategies


def test_step_counters_and_learning_rates_need_no_broadcast():
    with strategies.get("2 replicas").scope():
        optimizer = keras.optimizers.SGD(0.1)

    assert optimizer.iterations.value.aggregation == tf.VariableAggregation.NONE


def test_moving_statistics_read_as_the_mean_over_the_replicas():
    with strategies.get("2 replicas").scope():
        layer = keras.layers.BatchNormalization()
        layer.build((None, 3))

    assert layer.moving_mean.value.synchronization == tf.VariableSynchronization.ON_READ
    assert layer.moving_mean.value.aggregation == tf.VariableAggregation.MEAN
    assert layer.gamma.value.synchronization != tf.VariableSynchronization.ON_READ
