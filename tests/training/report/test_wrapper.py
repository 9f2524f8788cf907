"""A callback around another one, which Keras calls as if it were there itself."""

import keras
import pytest

from kerasdist.callbacks import Every, GradientClipping, OnChief
from kerasdist.training.report.callback_list import is_overridden
from kerasdist.training.report.wrapper import Wrapper


class Looks(keras.callbacks.Callback):
    """Notes when it is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch)


def test_hooks_model_and_parameters_are_those_of_the_callback():
    looks, model = Looks(), keras.Sequential()
    wrapper = Wrapper(Wrapper(looks))

    wrapper.set_params({"epochs": 2})
    wrapper.set_model(model)
    wrapper.on_epoch_end(1)

    assert (looks.model, looks.params, looks.seen) == (model, {"epochs": 2}, [1])


def test_a_hook_that_the_callback_does_not_have_is_none_of_the_wrapper():
    wrapper = Wrapper(Looks())

    wrapper.set_model(keras.Sequential())

    assert is_overridden(wrapper, "on_epoch_end")
    assert not is_overridden(wrapper, "on_train_batch_end")  # For which logs would be computed.


def test_the_innermost_is_no_wrapper():
    looks = Looks()

    assert OnChief(Every(looks, steps=2)).innermost is looks


@pytest.mark.parametrize("wrap", [OnChief, lambda callback: Every(callback, steps=1)])
def test_callbacks_of_the_update_are_refused(wrap):
    with pytest.raises(TypeError, match="GradientClipping is part of every step on every worker"):
        wrap(GradientClipping(norm=1.0))
    with pytest.raises(TypeError, match=r"`callback` must be a Keras callback\. Received: 3"):
        wrap(3)
