"""In the manner of curricula and searches: many calls of `fit` on one model, with changes between.

Harder data each time, weights averaged and set again between fits, the learning rate and the
trainable layers changed, the optimizer's state kept or made anew.
"""

import keras
import numpy as np

from tests.programs.scope import scope


def build_model():
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=1e-2),
        loss=keras.losses.Huber(),
        metrics=[keras.metrics.RootMeanSquaredError()],
    )
    return model


def run(strategy):
    keras.utils.set_random_seed(44)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(61, 4)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")
    order = np.argsort(np.abs(x).sum(axis=1))
    x, y = x[order], y[order]
    with scope(strategy):
        model = build_model()
    histories, rates, snapshots = [], [], []
    for stage, num_examples in enumerate((9, 33, 61)):
        history = model.fit(
            x[:num_examples],
            y[:num_examples],
            batch_size=8,
            epochs=stage + 3,
            initial_epoch=stage + 1,
            verbose=2,
        )
        histories += [history.history, history.epoch]
        snapshots.append(model.get_weights())
        model.optimizer.learning_rate = 1e-2 / (stage + 2)
        rates.append(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))
    average = [np.mean(arrays, axis=0) for arrays in zip(*snapshots, strict=True)]
    model.set_weights(average)
    scores = [model.evaluate(x, y, batch_size=32)]
    histories.append(model.fit(x, y, batch_size=20, epochs=1).history)

    model.layers[0].trainable = False
    with scope(strategy):
        model.compile(optimizer="sgd", loss="mae")
    histories.append(model.fit(x, y, batch_size=15, epochs=2).history)
    model.layers[-1].kernel.assign(model.layers[-1].kernel * 0.5)
    histories.append(model.fit(x, y, batch_size=15, epochs=1, steps_per_epoch=3).history)
    scores.append(model.evaluate(x, y, steps=2, batch_size=30, return_dict=True))
    return {
        "histories": histories,
        "scores": scores,
        "rates": rates,
        "weights": model.get_weights(),
    }
