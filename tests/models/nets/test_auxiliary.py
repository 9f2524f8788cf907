"""A second classifier half way through the net."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.nets import auxiliary
from tests.strategies import each_strategy


def build():
    keras.utils.set_random_seed(0)
    images = keras.Input((4,), name="images")
    x = keras.layers.Dense(5, activation="relu", name="half", kernel_regularizer="l2")(images)
    logits = keras.layers.Dense(3, name="logits")(x)
    second = keras.layers.Dense(3, name="second")(x)
    model = auxiliary.with_auxiliary(images, logits, second)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        weighted_metrics=["accuracy"],
    )
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(14, 4)).astype("float32")
    y = np.eye(3, dtype="float32")[rng.integers(3, size=14)]
    return x, y, rng.uniform(0.5, 2, size=14).astype("float32")


def train():
    model = build()
    x, y, weights = data()
    history = model.fit(x, y, sample_weight=weights, batch_size=5, epochs=2, verbose=0)
    results = model.evaluate(x, y, sample_weight=weights, batch_size=5, verbose=0)
    return [each.numpy() for each in model.weights], history.history, results


def by_hand():
    """Return the weights after one step of both losses, these, and what the second adds."""
    model = build()
    x, y, weights = data()
    with tf.GradientTape() as tape:
        logits, second = model(x[:5])
        smooth = y[:5] * 0.9 + 0.1 / 3
        losses = [
            -tf.reduce_sum(smooth * tf.nn.log_softmax(each), axis=-1) for each in (logits, second)
        ]
        loss = tf.reduce_mean((losses[0] + 0.4 * losses[1]) * weights[:5]) + sum(model.losses)
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
    ):
        variable.assign_sub(0.1 * gradient)
    added = 0.4 * tf.reduce_mean(losses[1] * weights[:5])
    return [each.numpy() for each in model.weights], float(loss), float(added)


def test_the_loss_is_the_first_plus_two_fifths_of_the_second():
    expected, loss, added = by_hand()
    model = build()
    x, y, weights = data()

    history = model.fit(x[:5], y[:5], sample_weight=weights[:5], batch_size=5, verbose=0).history

    assert history["loss"][0] == pytest.approx(loss, rel=1e-5)
    assert set(history) == {"loss", "auxiliary_loss", "accuracy"}
    assert history["auxiliary_loss"][0] == pytest.approx(added, rel=1e-5)
    for ours, theirs in zip(model.weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.exhaustive
@each_strategy
def test_every_deployment_trains_the_same_weights_with_the_same_losses(strategy):
    expected = train()
    with strategy.scope():
        found = train()

    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for name, theirs in expected[1].items():
        np.testing.assert_allclose(found[1][name], theirs, atol=1e-5)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5)


def test_what_is_kept_is_the_first(tmp_path):
    model = build()
    x, _, _ = data()

    auxiliary.classifier_of(model).save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x)[0])
    assert not [each.path for each in loaded.weights if "second" in each.path]


def test_without_a_second_one_it_is_a_model_like_others():
    images = keras.Input((4,))
    model = auxiliary.with_auxiliary(images, keras.layers.Dense(3)(images), None)

    assert auxiliary.classifier_of(model) is model
