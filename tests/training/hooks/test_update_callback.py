"""Callbacks that take part in the update; what they do to training is in tests/callbacks."""

import keras

from kerasdist.training.hooks import update_callback
from kerasdist.training.hooks.update_callback import StepCallback, UpdateCallback


class Add(UpdateCallback):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def update(self, gradients_and_variables, apply):
        apply(
            [
                (10 * gradient + self.number, variable)
                for gradient, variable in gradients_and_variables
            ]
        )


class Drop(UpdateCallback):
    def update(self, gradients_and_variables, apply):
        pass


class Observe(StepCallback):
    def observe(self, losses):
        pass


def test_gradients_pass_the_callbacks_in_list_order():
    applied = []

    update_callback.apply_in_order([Add(1), UpdateCallback(), Add(2)], [(0, "v")], applied.extend)

    assert applied == [(12, "v")]


def test_a_callback_may_leave_an_update_out():
    applied = []

    update_callback.apply_in_order([Drop(), Add(1)], [(0, "v")], applied.append)

    assert applied == []


def test_those_that_take_part_are_found_in_list_order_among_others():
    first, second = Add(1), Observe()

    found = update_callback.among([first, keras.callbacks.Callback(), second])

    assert found == (first, second)
    assert update_callback.overriding("observe", found) == [second]
    assert update_callback.among(None) == ()
