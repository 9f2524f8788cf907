"""What `model.train_function` and `model.test_function` are under our strategies."""

from typing import Any, Protocol

import tensorflow as tf


class TrainFunction(Protocol):
    """What Keras, the routes, callbacks and the progress bar ask of a train or test function.

    Callbacks ask more of a kind of strategy. Of synchronous workers' `StepFunction`: `look_again`,
    `request_stop`, `is_stop_requested`. Of parameter servers' `WorkerStepFunction`: `wait`,
    `finish`, `num_steps_of_epoch`. The rehearsals ask for `trace_again` and `was_rehearsed` where
    a function has them.

    Attributes:
        callbacks: The update callbacks that are compiled into it, in list order.
        num_examples: int64 variable, the examples over all replicas since `restart`.
        losses: `LossSums`, where a callback measures them; without any beside parameter servers.
        times: `StepTimes`, or `WorkerTimes` beside parameter servers: where the time of the steps
            goes, where a callback measures it.
        may_have_discarded: Whether a callback may have discarded a step of the last call.
    """

    callbacks: tuple
    num_examples: tf.Variable
    losses: Any
    times: Any

    @property
    def may_have_discarded(self) -> bool: ...

    def __call__(self, data) -> dict:
        """Runs the steps that `data` asks for, and answers it; returns logs to be read later.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        ...

    def restart(self) -> None:
        """Begins a `fit` or `evaluate`: counts from 0, and looks at the first batch again."""
        ...
