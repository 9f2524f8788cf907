"""Ray starts the workers, of which each may read a shard of its own, and tries settings."""

import ast

import keras
import numpy as np
import pytest

from tests.libraries.examples import example, needs, run_alone

pytestmark = [needs("ray"), pytest.mark.thorough]

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def losses_of_one_device(learning_rate=0.01, **settings):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    losses = model.fit(X, X.sum(axis=1), shuffle=False, verbose=0, **settings).history["loss"]
    return losses, model.get_weights()


def check_saved(weights):
    saved = keras.saving.load_model("model.keras").get_weights()
    for ours, theirs in zip(saved, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_ray_train_makes_what_one_device_makes():
    run_alone(example("Ray Train"))

    check_saved(losses_of_one_device(batch_size=16, epochs=4)[1])


def test_each_worker_reads_its_shard_of_ray_data():
    run_alone(example("Ray Data"))

    check_saved(losses_of_one_device(batch_size=64, epochs=3)[1])


def test_ray_tune_finds_what_one_device_finds():
    output = run_alone(example("Ray Tune"))

    # What a trial logs may come after it.
    (line,) = [each for each in output.splitlines() if each.startswith("{")]
    config, loss = line.rsplit(" ", 1)
    assert ast.literal_eval(config) == {"learning_rate": 0.1}
    assert float(loss) == pytest.approx(losses_of_one_device(0.1, epochs=2)[0][-1], rel=1e-5)
