"""Who is told what of the call that runs."""

import threading

import keras
import numpy as np
import pytest

from kerasdist.training.context import running_call
from tests.strategies import each_kind_of_strategy

X = np.ones((4, 2), "float32")


def test_calls_nest_and_end_with_an_error():
    model, other = keras.Model(), keras.Model()

    with running_call.entered("fit", model, update_callbacks=("a callback",)):
        with running_call.entered("predict", other):
            assert running_call.reads_whole_data()
            assert running_call.update_callbacks_of(model) == ("a callback",)
            assert running_call.training_of(other) is None
        assert not running_call.reads_whole_data()
        with pytest.raises(KeyError), running_call.entered("predict", model):
            raise KeyError
        assert not running_call.reads_whole_data()
    assert running_call.training_of(model) is None
    assert running_call.update_callbacks_of(model) == ()


def test_data_that_was_not_given_yet_has_no_state():
    with running_call.entered("fit", keras.Model()) as call:
        assert call.data_state(step=0, is_over=False) is None
        assert running_call.take_data_place() is None


def test_calls_belong_to_their_thread():
    seen = []

    with running_call.entered("predict", keras.Model()):
        thread = threading.Thread(target=lambda: seen.append(running_call.reads_whole_data()))
        thread.start()
        thread.join()

    assert seen == [False]


@each_kind_of_strategy
def test_the_methods_of_a_model_enter_theirs(strategy):
    seen = []

    class Asks(keras.callbacks.Callback):
        def _ask(self, *_, **__):
            is_training = running_call.training_of(self.model) is not None
            seen.append((is_training, running_call.reads_whole_data()))

        on_train_begin = on_test_begin = on_predict_begin = _ask

    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, X[:, :1], verbose=0, callbacks=[Asks()], validation_data=(X, X[:, :1]))
    model.evaluate(X, X[:, :1], verbose=0, callbacks=[Asks()])
    model.predict(X, verbose=0, callbacks=[Asks()])

    assert seen == [(True, False), (True, False), (False, False), (False, True)]


@each_kind_of_strategy
def test_wrong_arguments_are_for_keras_to_say(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'bogus'"):
        model.fit(X, X[:, :1], bogus=1)
