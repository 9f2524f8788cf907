"""After an error nothing of it is left that a later call would raise again."""

from typing import Any

import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers import abandonment


class Coordinator:
    """One whose queue still has an error."""

    def __init__(self):
        self.num_joined = 0

    def join(self):
        self.num_joined += 1
        raise ValueError("of a step that was scheduled, too")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (tf.errors.InvalidArgumentError(None, None, "too large"), tf.errors.InvalidArgumentError),
        (tf.errors.OutOfRangeError(None, None, "End of sequence"), ValueError),
        (KeyError("of a callback"), KeyError),
    ],
)
def test_what_was_scheduled_is_forgotten_and_the_error_is_the_users(error, told):
    coordinator: Any = Coordinator()
    running = ["a call", "another"]

    with (
        pytest.raises(told) as caught,
        abandonment.abandoned_after_errors(coordinator, running),
    ):
        raise error

    assert running == []
    assert coordinator.num_joined == 1
    if told is ValueError:
        assert "Call `repeat()` on it" in str(caught.value)


def test_what_ends_well_stays():
    coordinator: Any = Coordinator()
    running = ["a call"]

    with abandonment.abandoned_after_errors(coordinator, running):
        pass

    assert (running, coordinator.num_joined) == (["a call"], 0)
