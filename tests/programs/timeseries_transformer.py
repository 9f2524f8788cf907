"""In the manner of Keras' example of a Transformer over time series.

Attention and pointwise Conv1D, validation_split, EarlyStopping that restores the best weights,
ReduceLROnPlateau.
"""

import keras
import numpy as np

from tests.programs.scope import scope


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0.0):
    x = keras.layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads, dropout=dropout)(
        inputs, inputs
    )
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = keras.layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


def build_model(input_shape, n_classes, dropout):
    inputs = keras.Input(shape=input_shape)
    x = inputs
    for _ in range(2):
        x = transformer_encoder(x, head_size=4, num_heads=2, ff_dim=4, dropout=dropout)
    x = keras.layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.Dropout(dropout)(x)
    outputs = keras.layers.Dense(n_classes, activation="softmax")(x)
    return keras.Model(inputs, outputs)


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(35)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 12))
    y = (x[:, :3].sum(axis=1) > 0).astype(int)
    x = x.reshape((x.shape[0], x.shape[1], 1))
    idx = np.random.permutation(45)
    x_train, y_train, x_test, y_test = x[idx], y[idx], x[45:], y[45:]
    with scope(strategy):
        model = build_model((12, 1), 2, dropout=0.0 if comparable else 0.25)
        model.compile(
            loss="sparse_categorical_crossentropy",
            optimizer=keras.optimizers.Adam(learning_rate=1e-2),
            metrics=["sparse_categorical_accuracy"],
        )
    callbacks = [
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1),
    ]
    history = model.fit(
        x_train, y_train, validation_split=0.2, epochs=5, batch_size=8, callbacks=callbacks
    )
    return {
        "history": history.history,
        "scores": model.evaluate(x_test, y_test, verbose=1),
        "weights": model.get_weights(),
    }
