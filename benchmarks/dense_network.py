"""The network and the data that the benchmarks here train with."""

import keras
import numpy as np
import tensorflow as tf

FEATURES = 32


def make_model(strategy, units: int, *, optimizer_arguments=None, **compile_arguments):
    """Returns a compiled network float32 [batch, 32] -> [batch, 10 logits].

    Args:
        strategy: The strategy it is built under.
        units: Of each of its two hidden layers.
        optimizer_arguments: More arguments of its SGD with momentum.
        **compile_arguments: More arguments of `compile`.
    """
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9, **(optimizer_arguments or {})),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **compile_arguments,
        )
    return model


def num_parameters(units: int) -> int:
    """Returns how many numbers such a network trains."""
    return (FEATURES + 1) * units + (units + 1) * units + (units + 1) * 10


def dataset(batch_size: int) -> tf.data.Dataset:
    """Returns one global batch, over and over: the input costs nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size, FEATURES)).astype("float32")
    y = rng.integers(0, 10, size=batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensors((x, y)).repeat().with_options(options)
