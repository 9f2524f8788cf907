"""The private names of Keras' iterator over epochs are where they were, and do what they did."""

import inspect

import numpy as np
import pytest

from kerasdist.private import keras_epochs


@pytest.mark.parametrize(
    "name",
    [
        *["_get_iterator", "_interrupted_warning", "_enumerate_iterator"],
        *["_epoch_iterator", "_current_iterator", "_num_batches", "_steps_seen"],
    ],
)
def test_keras_has_the_names_that_are_used(name):
    assert f"self.{name}" in inspect.getsource(keras_epochs.epoch_iterator.EpochIterator)


class OwnIterator(keras_epochs.EpochIterator):
    """Reads numbers, and notes what Keras has asked of it."""

    def __init__(self):
        super().__init__(np.zeros((3, 1)), batch_size=1, steps_per_epoch=2)
        self.asked = []

    def make_iterator(self):
        self.asked.append("make_iterator")
        return iter("abc")

    def calls(self):
        self.asked.append("calls")
        return super().calls()

    def __next__(self):
        return self.next_call()

    def warn_of_end(self):
        self.asked.append(f"warn_of_end after {self.num_seen} of {self.num_batches_of_data}")


def test_keras_asks_by_the_public_names():
    steps = OwnIterator()

    for iterator in (iterator for *_, iterator in steps):
        assert iterator is steps.iterator
    assert (steps.asked, steps.num_seen) == (["calls", "make_iterator"], 2)

    steps.num_seen = 3  # One more than there are after the next.
    assert list(steps) == []
    assert steps.asked[2:] == ["calls", "warn_of_end after 3 of 3", "make_iterator"]
