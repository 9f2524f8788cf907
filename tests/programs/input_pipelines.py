"""In the manner of TensorFlow's tutorial on distributed input, and of all ways to shuffle and feed.

Datasets shuffled with and without a seed, before and after `repeat`, generators that end and
endless ones, a function of InputContext for each worker.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

GLOBAL_BATCH_SIZE = 8


def examples():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(40, 3)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def dataset_fn(input_context=None):
    x, y = examples()
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if input_context is None:
        return dataset.batch(GLOBAL_BATCH_SIZE).repeat()
    batch_size = input_context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    batches = dataset.batch(batch_size)
    batches = batches.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return batches.repeat()


def pairs():
    yield from zip(*examples(), strict=True)


def batches():
    x, y = examples()
    for start in range(0, 37, 8):
        yield x[start : min(start + 8, 37)], y[start : min(start + 8, 37)]


def endless_batches():
    rng = np.random.default_rng(1)
    x, y = examples()
    while True:
        rows = rng.choice(40, size=8)
        yield x[rows], y[rows]


def pipelines(strategy):
    """Yields (name, data, arguments of fit)."""
    dataset = tf.data.Dataset.from_tensor_slices(examples())
    epochs = {"epochs": 3}
    yield "shuffled", dataset.shuffle(40).batch(8), epochs
    yield "with a seed", dataset.shuffle(20, seed=3).batch(8), epochs
    fixed = dataset.shuffle(40, seed=3, reshuffle_each_iteration=False)
    yield "in one order", fixed.batch(7).cache(), epochs
    yield "batches shuffled", dataset.batch(8).shuffle(5).prefetch(2), epochs
    yield "repeated", dataset.shuffle(40).repeat().batch(8), epochs | {"steps_per_epoch": 5}
    yield "fewer steps", dataset.shuffle(40).batch(8).repeat(), epochs | {"steps_per_epoch": 3}
    unknown = dataset.shuffle(40).filter(lambda x, y: x[0] > 0.1).batch(8)
    yield "of unknown length", unknown, epochs
    noisy = dataset.map(lambda x, y: (x + tf.random.normal((3,)), y))
    yield "random map", noisy.batch(8), epochs
    signature = (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((1,), tf.float32))
    from_generator = tf.data.Dataset.from_generator(pairs, output_signature=signature)
    yield "from_generator", from_generator.shuffle(40).batch(8), epochs
    yield "generator", endless_batches(), epochs | {"steps_per_epoch": 5}
    yield "generator that ends", batches(), {}
    x, y = examples()
    yield "arrays", x, epochs | {"y": y, "batch_size": 12}
    if strategy is None:
        per_worker = dataset_fn()
    else:
        per_worker = strategy.distribute_datasets_from_function(dataset_fn)
    yield "dataset_fn", per_worker, epochs | {"steps_per_epoch": 5}


def make_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1), metrics=["mae"])
    return model


def run(strategy):
    keras.utils.set_random_seed(20)
    with scope(strategy):
        model = make_model()
    initial_weights = model.get_weights()
    results = {}
    for name, data, arguments in pipelines(strategy):
        model.set_weights(initial_weights)
        history = model.fit(data, **arguments)
        results[name] = {"history": history.history, "weights": model.get_weights()}
    return results
