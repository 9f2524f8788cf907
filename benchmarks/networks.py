"""The networks and the data that the benchmarks here train with."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

FEATURES = (32,)
IMAGE = (32, 32, 3)
SEQUENCE = (32, 64)


def dense(units: int) -> list:
    """Returns layers float32 [batch, 32] -> [batch, 10 logits].

    A step takes 6 floating-point operations per parameter and example.

    Args:
        units: Of each of its two hidden layers.
    """
    return [
        keras.Input(FEATURES),
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dense(10),
    ]


def convolutional(filters: int) -> list:
    """Returns layers float32 [batch, 32, 32, 3] -> [batch, 10 logits].

    A step takes about 700 floating-point operations per parameter and example, which it uses at
    many positions; that of Inception-v3 takes about 1,200.

    Args:
        filters: Of the first of its three convolutions; the others have 2 and 4 times as many.
    """
    convolutions = []
    for factor in (1, 2, 4):
        convolutions += [
            keras.layers.Conv2D(factor * filters, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
        ]
    pooling = keras.layers.GlobalAveragePooling2D()
    return [keras.Input(IMAGE), *convolutions, pooling, keras.layers.Dense(10)]


def transformer(num_blocks: int) -> list:
    """Returns layers float32 [batch, 32, 64] -> [batch, 10 logits].

    Args:
        num_blocks: Of attention with 4 heads, and of two dense layers.
    """
    inputs = x = keras.Input(SEQUENCE)
    for _ in range(num_blocks):
        attended = keras.layers.MultiHeadAttention(4, 16)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(128, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(SEQUENCE[-1])(hidden))
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))
    return [inputs, keras.Model(inputs, outputs)]


def make_model(
    strategy, layers: list | Callable[[], list], *, optimizer_arguments=None, **compile_arguments
):
    """Returns a network, compiled with SGD with momentum.

    Args:
        strategy: The strategy it is built under.
        layers: What it consists of, or a function that makes it in the scope.
        optimizer_arguments: More arguments of the optimizer.
        **compile_arguments: More arguments of `compile`.
    """
    with strategy.scope():
        model = keras.Sequential(layers() if callable(layers) else layers)
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9, **(optimizer_arguments or {})),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **compile_arguments,
        )
    return model


def dataset(batch_size: int, shape: tuple = FEATURES) -> tf.data.Dataset:
    """Returns one global batch, over and over: the input costs nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size, *shape)).astype("float32")
    y = rng.integers(0, 10, size=batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensors((x, y)).repeat().with_options(options)


def hand_loop(strategy, model, data):
    """Returns a function that runs so many steps in the loop of TensorFlow's guide.

    Args:
        strategy: TensorFlow's own, that the model was made under.
        model: Compiled.
        data: Dataset of global batches, without end.
    """
    model.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)  # Creates all variables.
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @tf.function
    def step(iterator):
        strategy.run(model.train_step, args=(next(iterator),))

    def run(num_steps):
        for _ in range(num_steps):
            step(iterator)

    return run
