"""In the manner of Keras' guide to distributed training: `fit` and `evaluate` in the scope.

The model is checkpointed after every epoch, and a second run goes on from the last file.
"""

import os

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


def get_compiled_model():
    inputs = keras.Input(shape=(20,))
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.Dense(16, activation="relu")(x)
    outputs = keras.layers.Dense(4)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def get_dataset():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(77, 20)).astype("float32")
    y = np.argmax(x[:, :4], axis=1)
    return (
        tf.data.Dataset.from_tensor_slices((x[:45], y[:45])).batch(8),
        tf.data.Dataset.from_tensor_slices((x[45:60], y[45:60])).batch(8),
        tf.data.Dataset.from_tensor_slices((x[60:], y[60:])).batch(8),
    )


def make_or_restore_model(checkpoint_dir):
    checkpoints = [f"{checkpoint_dir}/{name}" for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        return keras.models.load_model(max(checkpoints))
    return get_compiled_model()


def run_training(strategy, checkpoint_dir, epochs):
    with scope(strategy):
        model = make_or_restore_model(checkpoint_dir)
        train_dataset, val_dataset, test_dataset = get_dataset()
        callbacks = [
            keras.callbacks.ModelCheckpoint(
                filepath=checkpoint_dir + "/ckpt-{epoch}.keras", save_freq="epoch"
            )
        ]
        history = model.fit(
            train_dataset, epochs=epochs, callbacks=callbacks, validation_data=val_dataset
        )
        scores = model.evaluate(test_dataset)
    return {"history": history.history, "scores": scores, "weights": model.get_weights()}


def run(strategy, *, directory):
    keras.utils.set_random_seed(1)
    first = run_training(strategy, directory, epochs=2)
    files = sorted(os.listdir(directory))
    second = run_training(strategy, directory, epochs=1)
    return {"first": first, "files": files, "second": second}
