"""Which train_step a model trains with."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import GradientClipping
from kerasdist.parity import models, own_parts
from kerasdist.training.step.model_step import TraceAgainError
from tests.plain import check_as_plain
from tests.strategies import each_kind_of_strategy, each_strategy

X = np.arange(20, dtype="float32").reshape(10, 2) / 20


@each_strategy
def test_a_train_step_may_be_given_to_a_model(strategy):
    def make():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        def train_step(data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return {"loss": loss}

        model.train_step = train_step
        return model

    check_as_plain(
        strategy,
        make,
        lambda model: model.fit(X, X[:, :1], batch_size=5, shuffle=False, verbose=0).history,
    )


@each_strategy
@pytest.mark.parametrize("callbacks", [[], [GradientClipping(norm=9.0)]], ids=["alone", "clipped"])
def test_a_train_step_may_ask_for_weights_and_losses_before_any_are_made(strategy, callbacks):
    def train(model):
        is_ours = model.distribute_strategy is strategy
        history = model.fit(
            X,
            X[:, :1],
            batch_size=5,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=callbacks if is_ours else [],
        ).history
        return history, int(model.optimizer.iterations.numpy())

    check_as_plain(strategy, models.reading_first, train)


@each_strategy
@pytest.mark.parametrize("as_function", [True, False])
def test_an_evaluation_may_ask_for_losses_before_any_are_made(strategy, as_function):
    class Asking(own_parts.ReadsFirst):
        def test_step(self, data):
            penalty = keras.ops.sum(self.losses)
            return {"penalty": penalty, "outputs": keras.ops.mean(self(data[0]))}

    def make():
        model = Asking()
        model.compile()
        return model

    def evaluate(model):
        if as_function:
            return model.evaluate(X, X[:, :1], batch_size=5, verbose=0, return_dict=True)
        return model.test_on_batch(X, X[:, :1], return_dict=True)

    check_as_plain(strategy, make, evaluate)


@each_strategy
def test_a_call_that_fails_before_any_weight_is_made_changes_nothing(strategy):
    def train(model):
        if model.distribute_strategy is strategy:  # Plain Keras could not go on.
            with pytest.raises(TypeError, match="Iterating over a symbolic"):
                model.fit(X, batch_size=5, verbose=0)  # Without labels, as in a notebook.
        return model.fit(X, X[:, :1], batch_size=5, epochs=2, shuffle=False, verbose=0).history

    check_as_plain(strategy, models.reading_first, train)


@each_kind_of_strategy
def test_an_error_of_the_step_that_makes_the_weights_is_the_users(strategy):
    class Wrong(own_parts.Subclassed):
        def train_step(self, data):
            self(data[0])
            raise NotImplementedError("no step yet")

    with strategy.scope():
        model = Wrong()
        model.compile()

    with pytest.raises(NotImplementedError, match="no step yet") as caught:
        model.fit(X, X[:, :1], verbose=0)
    assert not isinstance(caught.value.__context__, TraceAgainError)
