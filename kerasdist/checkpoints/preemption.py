"""Stops all workers at one step on SIGTERM, which a scheduler sends to take a machine back."""

import itertools
import os
import signal

import keras
import numpy as np
import tensorflow as tf

from kerasdist.lifetime.termination import Termination
from kerasdist.training.context import peers, running_call


class Preemption:
    """Asks, between the steps of a `fit`, whether a task has been told to end.

    Attributes:
        told: The names of the workers that have received SIGTERM, once it is due; empty where there
            is one.
    """

    def __init__(self):
        self.told: list[str] = []
        self._termination = Termination()

    def watch(self, model: keras.Model) -> None:
        """Notes SIGTERM from now on, until the running call of `model` ends."""
        self._termination.watch()
        running_call.at_end(model, self._termination.unwatch)

    def is_due(self, model: keras.Model) -> bool:
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
        return self._is_any_told(strategy)

    def is_due_at_end(self, model: keras.Model) -> bool:
        """The same when `fit` is over; if no task has, SIGTERM does again what it did before."""
        if self._is_any_told(model.distribute_strategy):
            return True
        self._termination.unwatch()
        if self._termination.is_asked_for:  # It came while the workers asked each other.
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    def _is_any_told(self, strategy: tf.distribute.Strategy) -> bool:
        is_told = np.array([self._termination.is_asked_for])
        every = peers.gather(strategy, is_told)[:, 0]
        if len(every) > 1:
            self.told = list(itertools.compress(peers.tasks(strategy), every))
        return bool(every.any())
