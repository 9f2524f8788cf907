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


def pipelines():
    """Yields (name, data, arguments of fit)."""
    dataset = tf.data.Dataset.from_tensor_slices(examples())
    yield "shuffled", dataset.shuffle(40).batch(8), {}
    yield "with a seed", dataset.shuffle(20, seed=3).batch(8), {}
    fixed = dataset.shuffle(40, seed=3, reshuffle_each_iteration=False)
    yield "in one order", fixed.batch(7).cache(), {}
    yield "batches shuffled", dataset.batch(8).shuffle(5).prefetch(2), {}
    yield "repeated", dataset.shuffle(40).repeat().batch(8), {"steps_per_epoch": 5}
    yield "fewer steps", dataset.shuffle(40).batch(8).repeat(), {"steps_per_epoch": 3}
    unknown = dataset.shuffle(40).filter(lambda x, y: x[0] > 0.1).batch(8)
    yield "of unknown length", unknown, {}
    noisy = dataset.map(lambda x, y: (x + tf.random.normal((3,)), y))
    yield "random map", noisy.batch(8), {}
    signature = (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((1,), tf.float32))
    from_generator = tf.data.Dataset.from_generator(pairs, output_signature=signature)
    yield "from_generator", from_generator.shuffle(40).batch(8), {}
    yield "generator", endless_batches(), {"steps_per_epoch": 5}
    yield "arrays", examples()[0], {"y": examples()[1], "batch_size": 12}


def make_model():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1), metrics=["mae"])
    return model


def run(strategy):
    keras.utils.set_random_seed(20)
    results = {}
    for name, data, arguments in pipelines():
        with scope(strategy):
            model = make_model()
        history = model.fit(data, epochs=3, **arguments)
        results[name] = {"history": history.history, "weights": model.get_weights()}

    with scope(strategy):
        model = make_model()
    if strategy is None:
        per_worker = dataset_fn()
    else:
        per_worker = strategy.distribute_datasets_from_function(dataset_fn)
    history = model.fit(per_worker, epochs=2, steps_per_epoch=5)
    results["dataset_fn"] = {"history": history.history, "weights": model.get_weights()}
    with scope(strategy):
        model = make_model()
    history = model.fit(batches(), epochs=1)
    results["generator that ends"] = {"history": history.history, "weights": model.get_weights()}
    return results
