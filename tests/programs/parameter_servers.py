"""In the manner of TensorFlow's tutorial on parameter servers: `fit` with a function as data.

The function takes an InputContext. Steps per execution, callbacks that write checkpoints and event
files, an embedding.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


def dataset_fn(input_context):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 50, size=(48, 4))
    y = (words > 25).mean(axis=1, keepdims=True).astype("float32")
    batch_size = input_context.get_per_replica_batch_size(8)
    dataset = tf.data.Dataset.from_tensor_slices((words, y)).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


def run(strategy, *, directory):
    keras.utils.set_random_seed(23)
    with scope(strategy):
        model = keras.models.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Embedding(50, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), loss="mse", steps_per_execution=2)
    callbacks = [
        keras.callbacks.TensorBoard(log_dir=f"{directory}/my_logdir"),
        keras.callbacks.ModelCheckpoint(filepath=f"{directory}/my_ckpt.keras"),
        keras.callbacks.BackupAndRestore(backup_dir=f"{directory}/my_backup"),
    ]
    # Keras alone takes no function as data.
    data = dataset_fn if strategy else dataset_fn(tf.distribute.InputContext())
    history = model.fit(data, epochs=3, steps_per_epoch=6, callbacks=callbacks)
    words = np.arange(20).reshape(5, 4)
    restored = keras.models.load_model(f"{directory}/my_ckpt.keras")
    return {
        "history": history.history,
        "restored": restored.predict(words),
        "predictions": model.predict(words),
        "weights": model.get_weights(),
    }
