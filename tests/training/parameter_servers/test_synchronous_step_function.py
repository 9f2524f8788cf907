"""Synchronous workers of parameter servers: `fit` gives the weights of one device."""

import keras
import numpy as np
import pytest

from tests import strategies

X = np.random.default_rng(0).normal(size=(26, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "clipped SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
    "averaged AdamW": lambda: keras.optimizers.AdamW(0.05, use_ema=True, ema_momentum=0.8),
}


def train(strategy, make_optimizer, batch_size):
    """Returns the weights, the updates and the examples' mean loss of two epochs of 26 examples."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        )
        model.compile(make_optimizer(), loss="mse", metrics=["mae"])
    history = model.fit(X, Y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), int(model.optimizer.iterations), history.history


def train_all(strategy, batch_size):
    return {name: train(strategy, make, batch_size) for name, make in OPTIMIZERS.items()}


def train_with_batches_of_4(strategy):
    return train_all(strategy, 4)


@pytest.mark.processes
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
def test_weights_and_logs_are_those_of_one_device(workers):
    (found,) = strategies.run_on_workers(train_with_batches_of_4, workers, timeout_secs=120)

    expected = train_all(strategies.get("one device"), 8)
    for name, (weights, num_updates, logs) in expected.items():
        assert found[name][1] == num_updates == 8
        for weight, other in zip(found[name][0], weights, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6, err_msg=name)
        for key, values in logs.items():
            np.testing.assert_allclose(found[name][2][key], values, rtol=1e-5, err_msg=name)
