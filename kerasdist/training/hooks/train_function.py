"""The base class of `model.train_function` and `model.test_function` under our strategies."""

from typing import Any

import numpy as np


class TrainFunction:
    """Runs the steps of `fit` or `evaluate`, and answers what callbacks ask about them.

    A question that makes no sense for a kind of strategy has the answer of a training that needs
    nothing of the sort.

    Attributes:
        callbacks: The update callbacks that are compiled into it, in list order.
        num_examples: int64 scalar, the examples over all replicas since `restart`.
        losses: `LossSums`, where a callback measures them; without any where each worker over
            parameter servers makes updates of its own.
        joins_batches: Whether each step takes several batches of the program, joined.
        times: `StepTimes`, or `WorkerTimes` beside parameter servers: where the time of the steps
            goes, where a callback measures it.
        num_dropped: How many batches of each worker since `restart` came too late for their update,
            and were dropped and computed again: int64 [workers]; empty where none can.
    """

    callbacks: tuple = ()
    num_examples: Any = 0
    joins_batches = False
    losses: Any
    times: Any
    num_dropped: np.ndarray = np.zeros([0], np.int64)

    def __call__(self, data: Any) -> dict:
        """Runs the steps that `data` asks for, and answers it; returns logs to be read later.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        raise NotImplementedError

    @property
    def may_have_discarded(self) -> bool:
        """Whether a callback may have discarded a step of the last call."""
        return False

    @property
    def is_stop_requested(self) -> bool:
        """Whether a worker wanted to stop before the last step; the same on every worker."""
        return False

    @property
    def was_checked(self) -> bool:
        """Whether a first step has been compared with one device."""
        return False

    @property
    def is_repeated(self) -> bool:
        """Whether every replica has the whole batch: else it is not what one device gives."""
        return False

    @property
    def num_steps_of_epoch(self) -> int:
        """How many steps of the epoch asynchronous workers have made, as far as anybody knows."""
        return 0

    def restart(self) -> None:
        """Begins a `fit` or `evaluate`: counts from 0, and looks at the first batch again."""

    def look_again(self) -> None:
        """Compares the next batch of the workers, too, as that of a new epoch."""

    def request_stop(self) -> None:
        """Tells the other workers, with the next gradients, that this one wants to stop."""

    def trace_again(self) -> None:
        """Forgets what has been traced: the steps are computed in another way."""

    def wait(self) -> None:
        """Waits until metrics have what runs, before others reset them."""

    def finish(self) -> int | None:
        """Waits for the steps that still run.

        Returns:
            How many steps of the epoch have been made; None where these are all.
        """
        return None


class EnclosingFunction(TrainFunction):
    """A train function around another one, which answers all that is asked.

    Args:
        inside: The other one. Keras' own answers nothing.
    """

    def __init__(self, inside: Any):
        self.inside = inside
        if isinstance(inside, TrainFunction):
            self.callbacks, self.num_examples = inside.callbacks, inside.num_examples
            self.losses, self.times = inside.losses, inside.times
            self.joins_batches = inside.joins_batches

    @property
    def may_have_discarded(self) -> bool:
        return self.inside.may_have_discarded

    @property
    def is_stop_requested(self) -> bool:
        return self.inside.is_stop_requested

    @property
    def was_checked(self) -> bool:
        return self.inside.was_checked

    @property
    def is_repeated(self) -> bool:
        return self.inside.is_repeated

    @property
    def num_steps_of_epoch(self) -> int:
        return self.inside.num_steps_of_epoch

    @property
    def num_dropped(self) -> np.ndarray:  # ty: ignore[incompatible-property-override]
        return self.inside.num_dropped

    def restart(self) -> None:
        self.inside.restart()

    def look_again(self) -> None:
        self.inside.look_again()

    def request_stop(self) -> None:
        self.inside.request_stop()

    def trace_again(self) -> None:
        self.inside.trace_again()

    def wait(self) -> None:
        self.inside.wait()

    def finish(self) -> int | None:
        return self.inside.finish()
