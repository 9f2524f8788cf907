"""In the manner of the tutorials on saving and loading: every format, in the scope and outside."""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.programs.scope import scope


@keras.saving.register_keras_serializable(package="saving")
class Scale(keras.layers.Layer):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def create_model():
    model = keras.models.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(8, activation="relu"),
            Scale(0.5),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def run(strategy, *, directory):
    keras.utils.set_random_seed(24)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(37, 5)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    with scope(strategy):
        model = create_model()
    checkpoint_path = directory + "/cp-{epoch:04d}.weights.h5"
    model.save_weights(checkpoint_path.format(epoch=0))
    cp_callback = keras.callbacks.ModelCheckpoint(
        checkpoint_path, verbose=1, save_weights_only=True, save_freq=10
    )
    best = keras.callbacks.ModelCheckpoint(
        f"{directory}/best.keras", monitor="val_loss", save_best_only=True
    )
    histories = [
        model.fit(
            x, y, batch_size=8, epochs=4, callbacks=[cp_callback, best], validation_split=0.2
        ).history
    ]
    scores = [model.evaluate(x, y)]
    files = sorted(name for name in os.listdir(directory) if name.startswith("cp"))
    with scope(strategy):
        model.save(f"{directory}/my_model.keras")
        model.save(f"{directory}/my_model.h5")
    model.export(f"{directory}/exported", verbose=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    # All workers take part in a checkpoint, and one may write to this place.
    prefix = checkpoint.write(
        f"{directory if kerasdist.is_chief() else tempfile.mkdtemp()}/tf_ckpt"
    )

    with scope(strategy):
        fresh = create_model()
        scores.append(fresh.evaluate(x, y, verbose=2))
        fresh.load_weights(f"{directory}/{files[-1]}")
    scores.append(fresh.evaluate(x, y, verbose=2))
    for name in ("my_model.keras", "my_model.h5", "best.keras"):
        with scope(strategy):
            loaded = keras.models.load_model(f"{directory}/{name}")
        scores.append(loaded.evaluate(x, y))
        if name.endswith(".keras"):  # Keras cannot go on training from .h5.
            histories.append(loaded.fit(x, y, batch_size=8, epochs=2).history)
    outside = keras.models.load_model(f"{directory}/my_model.keras")
    histories.append(outside.fit(x, y, batch_size=8, epochs=1).history)
    with scope(strategy):
        clone = keras.models.clone_model(model)
        from_json = keras.models.model_from_json(model.to_json())
        from_json.set_weights(model.get_weights())
        restored = create_model()
        tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(prefix)
    exported = tf.saved_model.load(f"{directory}/exported")
    return {
        "histories": histories,
        "scores": scores,
        "files": files,
        "exported": exported.serve(x).numpy(),
        "predictions": [each.predict(x) for each in (outside, from_json, restored)],
        "shapes": [weight.shape for weight in clone.get_weights()],
        "weights": model.get_weights(),
    }
