"""In the manner of Keras' guide to transfer learning: a frozen base, then unfrozen and recompiled.

The base has BatchNormalization and is called with training=False.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


def make_base(synchronized):
    inputs = keras.Input(shape=(8, 8, 3))
    x = inputs
    for filters in (4, 6):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(synchronized=synchronized)(x)
        x = keras.layers.Activation("relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    return keras.Model(inputs, x, name="base")


def make_model(base_model, comparable):
    inputs = keras.Input(shape=(8, 8, 3))
    x = inputs
    if not comparable:
        for layer in (keras.layers.RandomFlip("horizontal"), keras.layers.RandomRotation(0.1)):
            x = layer(x)
    x = keras.layers.Rescaling(scale=1 / 127.5, offset=-1)(x)
    x = base_model(x, training=False)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.0 if comparable else 0.2)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def compile_with(model, learning_rate):
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy()],
    )


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(14)
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, size=(45, 8, 8, 3)).astype("float32")
    labels = (images.mean(axis=(1, 2, 3)) > 127).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    train_ds = dataset.take(37).batch(8).prefetch(tf.data.AUTOTUNE).cache()
    validation_ds = dataset.skip(37).batch(8)
    with scope(strategy):
        # "Pretrained": some training moves the statistics of the base.
        base_model = make_base(synchronized=comparable)
        pretraining = keras.Sequential([base_model, keras.layers.Flatten(), keras.layers.Dense(1)])
        pretraining.compile(optimizer="sgd", loss="mse")
    pretrained = pretraining.fit(train_ds, epochs=1, verbose=0)

    with scope(strategy):
        base_model.trainable = False
        model = make_model(base_model, comparable)
        compile_with(model, 1e-3)
    summary = []
    model.summary(print_fn=lambda line, **_: summary.append(line), show_trainable=True)
    frozen = model.fit(train_ds, epochs=2, validation_data=validation_ds)
    head = [weight.shape for weight in model.trainable_weights]

    base_model.trainable = True
    with scope(strategy):
        compile_with(model, 1e-5)
    unfrozen = model.fit(train_ds, epochs=2, validation_data=validation_ds)
    return {
        "histories": [each.history for each in (pretrained, frozen, unfrozen)],
        "head": head,
        "trainable": [weight.shape for weight in model.trainable_weights],
        "summary": len(summary),
        "predictions": model.predict(validation_ds),
        "weights": model.get_weights(),
    }
