"""SIGTERM, as a scheduler sends it that takes a machine back: all workers stop at the same step."""

import os
import signal

from kerasdist.lifetime.termination import Termination
from kerasdist.training import peers, running_call


class Preemption:
    """Asks, between the steps of a `fit`, whether a task has been told to end."""

    def __init__(self):
        self._termination = Termination()

    def watch(self, model) -> None:
        """Notes SIGTERM from now on, until the running call of `model` ends."""
        self._termination.watch()
        running_call.at_end(model, self._termination.unwatch)

    def is_due(self, model) -> bool:
        """Whether a task has received SIGTERM; the same on all workers, of which each must ask."""
        strategy = model.distribute_strategy
        if peers.count(strategy) == 1:
            return self._termination.is_asked_for
        if model.train_function is None:  # A callback has compiled it: no step follows.
            return False
        if self._termination.is_asked_for:
            model.train_function.request_stop()
        if not model.train_function.is_stop_requested:
            return False
        return peers.any_of(strategy, self._termination.is_asked_for)

    def is_due_at_end(self, model) -> bool:
        """The same when `fit` is over; if no task has, SIGTERM does again what it did before."""
        if peers.any_of(model.distribute_strategy, self._termination.is_asked_for):
            return True
        self._termination.unwatch()
        if self._termination.is_asked_for:  # It came while the workers asked each other.
            os.kill(os.getpid(), signal.SIGTERM)
        return False
