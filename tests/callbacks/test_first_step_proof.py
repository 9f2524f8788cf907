"""The proof of the first step: it finds what differs from one device, and changes nothing."""

import contextlib
import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import FirstStepProof, LossAverages
from kerasdist.training.trial import choose
from tests import strategies
from tests.cases import exhaustive

pytestmark = pytest.mark.thorough

X = np.random.default_rng(1).random((24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Summing(keras.Sequential):
    """Adds up the squares of the batch, where one device and replicas give different numbers."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = tf.reduce_sum(tf.square(predictions - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {**self.compute_metrics(x, y, predictions), "loss": loss}


def fit(
    strategy,
    callbacks=(),
    *,
    model_class=keras.Sequential,
    optimizer=keras.optimizers.Adam,
    batch_size=10,
    **arguments,
):
    """Trains a model with chance and unsynchronized statistics; returns its history and weights."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = model_class(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer(0.01), "mse", metrics=["mae"], **arguments)
    history = model.fit(
        X, Y, batch_size=batch_size, epochs=2, verbose=0, callbacks=list(callbacks)
    ).history
    return history, [variable.numpy() for variable in model.weights]


@strategies.on_three_replicas
@pytest.mark.filterwarnings("ignore:Batch normalization")
@pytest.mark.parametrize(
    "arguments", [{"steps_per_execution": 2}, *exhaustive({}, {"run_eagerly": True})]
)
def test_an_equal_step_is_proved_and_training_is_as_without(strategy, arguments, capsys):
    proof = FirstStepProof()

    history, weights = fit(strategy, [proof, LossAverages()], **arguments)

    assert proof.comparison and proof.comparison.is_equal
    printed = capsys.readouterr().out
    assert f"First step: equal on {strategy.num_replicas_in_sync} replicas" in printed
    assert " s, before training." in printed
    expected_history, expected_weights = fit(strategy, [LossAverages()], **arguments)
    # The first batch comes by another way, so that TensorFlow compiles another graph.
    assert history.keys() == expected_history.keys()
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    for ours, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Batch normalization")
@pytest.mark.filterwarnings("ignore:The gradient over 2 replicas:UserWarning")
@pytest.mark.parametrize("is_mended", [True, *exhaustive(False)])
def test_a_sum_over_examples_is_found(is_mended, monkeypatch, capsys):
    if not is_mended:  # As with data by file, where replicas cannot have the whole batch.
        monkeypatch.setattr(choose, "finds_nothing", lambda *_: False)
    proof = FirstStepProof()

    # Adam's steps are as large for half of the gradient.
    fit_summing = functools.partial(
        fit, strategies.get("2 replicas"), model_class=Summing, optimizer=keras.optimizers.SGD
    )
    with pytest.warns(UserWarning, match="sum") if is_mended else contextlib.nullcontext():
        _, weights = fit_summing([proof])

    assert proof.comparison and proof.comparison.is_equal == is_mended
    if is_mended:
        _, expected = fit_summing()
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        return
    printed = capsys.readouterr().out
    assert "First step: DIFFERS on 2 replicas from one device." in printed
    assert "Likely reason: A sum over examples: the change in this step is 0.5 times" in printed


@pytest.mark.filterwarnings("ignore:Batch normalization")
def test_messages_in_16_bits_are_named_first(monkeypatch, capsys):
    strategy = strategies.get("2 replicas")
    narrow = dataclasses.replace(strategy.deployment, allreduce_dtype="bfloat16")
    monkeypatch.setattr(strategy, "deployment", narrow)  # As if its replicas were workers.

    fit(strategy, [FirstStepProof()], optimizer=lambda _: keras.optimizers.SGD(0.3))

    printed = capsys.readouterr().out
    assert "First step: DIFFERS on 2 replicas from one device." in printed
    assert "Likely reason: Rounding: gradients are sent as bfloat16. If it differs" in printed


def test_one_replica_has_nothing_to_compare(capsys):
    proof = FirstStepProof()

    fit(strategies.get("one device"), [proof])

    assert proof.comparison is None
    assert "First step not compared with one device: there is one replica." in (
        capsys.readouterr().out
    )


class Own(keras.Sequential):
    """Makes the slots of an optimizer of its own, and its metrics, in the first step."""

    def compile(self, optimizer, _, *, metrics, **arguments):
        super().compile(metrics=metrics, **arguments)
        self.optimizers = {"mine": optimizer}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = tf.reduce_mean(tf.square(predictions - y))
        variables = self.trainable_variables
        self.optimizers["mine"].apply(tape.gradient(loss, variables), variables)
        return {**self.compute_metrics(x, y, predictions), "square": loss}


@pytest.mark.exhaustive
@strategies.on_three_replicas
@pytest.mark.filterwarnings("ignore:Batch normalization")
def test_what_the_first_step_makes_begins_as_without_the_proof(strategy):
    proof = FirstStepProof()

    history, weights = fit(strategy, [proof], model_class=Own)

    assert proof.comparison and proof.comparison.is_equal
    expected_history, expected_weights = fit(strategy, model_class=Own)
    for name in ("mae", "square"):
        np.testing.assert_allclose(history[name], expected_history[name], rtol=1e-5)
    for ours, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_an_error_before_the_first_step_leaves_no_proof_behind(capsys):
    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise KeyError("stop")

    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(KeyError):
        model.fit(X, Y, verbose=0, callbacks=[FirstStepProof(), Fails()])
    model.fit(X, Y, verbose=0)

    assert "First step" not in capsys.readouterr().out


def test_a_plain_model_is_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match="FirstStepProof cannot act on model"):
        model.fit(X, Y, verbose=0, callbacks=[FirstStepProof()])


def prove(strategy):
    proofs = [FirstStepProof(), FirstStepProof()]
    for proof, model_class in zip(proofs, (keras.Sequential, Own), strict=True):
        fit(strategy, [proof], model_class=model_class)
    return [proof.comparison and proof.comparison.is_equal for proof in proofs]


@pytest.mark.exhaustive
@pytest.mark.processes
def test_two_workers_prove_their_step():
    assert strategies.run_on_workers(prove, "2 workers") == [[True, True]] * 2
