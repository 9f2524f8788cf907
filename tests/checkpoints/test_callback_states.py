"""What callbacks know is kept, and given back to the callback that it belongs to."""

from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from kerasdist.callbacks import Every, OnChief
from kerasdist.checkpoints import callback_states
from tests.warned import warned_by


class Own(keras.callbacks.Callback):
    """Keeps what it was given."""

    def __init__(self, state: Any = None):
        super().__init__()
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


class WithArgument(keras.callbacks.Callback):
    def get_state(self, name):
        return {name: 1.0}

    def set_state(self, state):
        raise AssertionError


class OnlyRead(keras.callbacks.Callback):
    def get_state(self):
        return {"count": 1.0}


def resumed(before, after):
    """Gives the callbacks of a program that is started again what those of before know."""
    states, arrays = callback_states.read(before)
    callback_states.write(after, states, arrays)
    return callback_states.without_callback(after, states, arrays)


@pytest.mark.parametrize(
    ("callback", "reason"),
    [
        (Own({"count": 1.0, "rows": [{"epoch": 1}]}), "Own: 'rows' in it is not an array"),
        (Own({"best": None}), "'best' in it is not an array of numbers or text"),
        (Own({"ragged": [[1, 2], [3]]}), "'ragged' in it is not an array"),
        (Own([1.0]), "its get_state returns a list"),
        (WithArgument(), "WithArgument: its get_state needs arguments"),
        (OnlyRead(), "OnlyRead: it has no set_state"),
    ],
)
def test_a_state_that_a_checkpoint_cannot_hold_is_left_out_with_one_warning(callback, reason):
    found = []

    told = warned_by(lambda: found.extend(callback_states.read([callback]) for _ in range(2)))

    assert len(told) == 1 and reason in told[0]
    assert [(*states[0], arrays) for states, arrays in found] == [("class", "bases", {})] * 2


def test_arrays_of_numbers_and_text_come_back_under_their_names():
    state = {"count": 3, "text": "two", "half": np.ones(2, ml_dtypes.bfloat16)}
    after = Own({name: 0.0 for name in reversed(state)})

    resumed([Own(state)], [after])

    keras.tree.map_structure(np.testing.assert_array_equal, after.state, state)


def test_a_callback_finds_its_state_wherever_it_is_in_the_list():
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    plateau.best, plateau.wait = 0.5, 3
    before = [Own({"number": 1.0}), plateau, Own({"number": 2.0})]
    plateau, first, second = keras.callbacks.ReduceLROnPlateau("loss"), Own({}), Own({})

    without = resumed(before, [keras.callbacks.CSVLogger("log.csv"), plateau, first, second])

    assert (plateau.best, plateau.wait) == (0.5, 3)
    assert (first.state["number"], second.state["number"]) == (1.0, 2.0)
    assert without == []
    assert resumed(before, [Own({}), OnlyRead()]) == ["ReduceLROnPlateau", "Own"]


def test_the_callback_in_wrappers_is_kept():
    stopping = keras.callbacks.EarlyStopping("loss")
    stopping.best, stopping.wait = 0.5, 3
    after, elsewhere = keras.callbacks.EarlyStopping("loss"), Own({"count": 1.0})
    after.set_model(keras.Sequential())

    resumed(
        [OnChief(Every(stopping, steps=2)), OnChief(Own({"count": 7.0}))],
        [OnChief(Every(after, steps=2)), OnChief(elsewhere)],
    )

    assert (after.best, after.wait) == (0.5, 3)
    assert elsewhere.state == {"count": 1.0}  # Of a worker on which it does not run.
