"""How variables of a strategy read, and what their updates send: not always as Keras asks for."""

from collections.abc import Callable

import keras
import tensorflow as tf

from kerasdist.private import keras_adapter


def creator_for(strategy) -> Callable:
    """Returns create(stock, next_creator, **kwargs) for the variables of `strategy`.

    Its arguments are TensorFlow's own function for these variables and what it is given.
    """
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return _create_on_workers if is_multi_worker else _create


def _create(stock, next_creator, **kwargs):
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        # Step counters and learning rates: every replica computes the same value, no broadcast.
        kwargs["aggregation"] = tf.VariableAggregation.NONE
    elif _is_moving_statistic(kwargs):
        # See batch_statistics: one value per replica, which reads and saves as their mean.
        kwargs["aggregation"] = tf.VariableAggregation.MEAN
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    return stock(next_creator, **kwargs)


def _create_on_workers(stock, next_creator, **kwargs):
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        kwargs["aggregation"] = tf.VariableAggregation.NONE
    # Moving statistics stay one value per replica: to read their mean, all workers would have to.
    return stock(next_creator, **kwargs)


def _is_moving_statistic(kwargs) -> bool:
    layer = keras_adapter.layer_being_built()
    return isinstance(layer, keras.layers.BatchNormalization) and not kwargs.get("trainable")
