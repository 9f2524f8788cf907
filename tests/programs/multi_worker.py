"""In the manner of TensorFlow's tutorial on multi-worker training with Keras.

The batch is so much per worker, `fit` has steps per epoch, a backup is kept, the chief saves to the
path, the others to one of their own which they delete, and all load what the chief has saved.
"""

import os

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

PER_WORKER_BATCH_SIZE = 4


def mnist_dataset(batch_size):
    rng = np.random.default_rng(0)
    x_train = rng.integers(0, 256, size=(40, 8, 8)) / np.float32(255)
    y_train = rng.integers(0, 4, size=40).astype(np.int64)
    train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    return train_dataset.shuffle(60).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = keras.Sequential(
        [
            keras.layers.InputLayer(shape=(8, 8)),
            keras.layers.Reshape(target_shape=(8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.01),
        metrics=["accuracy"],
    )
    return model


def task_of(strategy):
    resolver = strategy and strategy.cluster_resolver
    return (resolver.task_type, resolver.task_id) if resolver else (None, None)


def is_chief(task_type, task_id):
    return task_type in (None, "chief") or (task_type == "worker" and task_id == 0)


def write_filepath(filepath, task_type, task_id):
    dirpath, base = os.path.split(filepath)
    if not is_chief(task_type, task_id):
        dirpath = os.path.join(dirpath, f"workertemp_{task_id}")
        tf.io.gfile.makedirs(dirpath)
    return os.path.join(dirpath, base)


def run(strategy, *, directory):
    keras.utils.set_random_seed(21)
    # The tutorial multiplies by the number of workers; the truth is the batch of two of them.
    num_workers = 2
    global_batch_size = PER_WORKER_BATCH_SIZE * num_workers
    multi_worker_dataset = mnist_dataset(global_batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    multi_worker_dataset = multi_worker_dataset.with_options(options)
    with scope(strategy):
        multi_worker_model = build_and_compile_cnn_model()
    callbacks = [keras.callbacks.BackupAndRestore(backup_dir=f"{directory}/backup")]
    history = multi_worker_model.fit(
        multi_worker_dataset, epochs=3, steps_per_epoch=5, callbacks=callbacks
    )

    model_path = f"{directory}/keras-model.keras"
    task_type, task_id = task_of(strategy)
    write_model_path = write_filepath(model_path, task_type, task_id)
    multi_worker_model.save(write_model_path)
    if not is_chief(task_type, task_id):
        tf.io.gfile.rmtree(os.path.dirname(write_model_path))
    with scope(strategy):
        loaded_model = keras.models.load_model(model_path)
    loaded = loaded_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=5)
    return {
        "histories": [history.history, loaded.history],
        "weights": [each.get_weights() for each in (multi_worker_model, loaded_model)],
    }
