"""Traces the graph of a synchronous worker: steps whose gradients are staged."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kerasdist.training.context import deployment
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.parameter_servers.worker_steps import WorkerSteps, not_negative, skip
from kerasdist.training.synchronous_servers.rounds import Rounds
from kerasdist.training.synchronous_servers.staged_update import StagedUpdate


class WorkerRounds(WorkerSteps):
    """The graphs of synchronous workers.

    Args: those of `WorkerSteps`.
    """

    def in_rounds(self, rounds: Rounds, update: StagedUpdate) -> Callable:
        """Returns what runs steps whose gradients are staged, until it is told to stop.

        Args:
            rounds: They say at which positions.
            update: The rest of the steps, which another task makes.

        Returns:
            A function of the worker's iterator and three numbers: the generation of the data, the
            seat of the worker, and that of the round.
        """
        return graph_function(functools.partial(self._steps_in_rounds, rounds, update))

    def _replica_of(self, position: tf.Tensor) -> tf.Tensor:
        # On whichever worker, and however often, a batch is computed with the same numbers.
        number = deployment.remote_workers(self._strategy).num_to_aggregate
        return tf.math.floormod(position, tf.cast(number, position.dtype))

    def of_given(self, update: StagedUpdate) -> Callable:
        """Returns what stages the step of a batch that it is given, to look at its trace."""
        return graph_function(functools.partial(self._stage_given, update))

    def _stage_given(self, update: StagedUpdate, batch: Any) -> None:
        with self._ledger.tracing(), self._data_waits.noted():
            zero: Any = tf.constant(0, tf.int64)
            update.stage(zero, functools.partial(self._traced_step, 0, zero, batch))

    def _steps_in_rounds(
        self, rounds: Rounds, update: StagedUpdate, iterator: Iterator, numbers: tf.Tensor
    ) -> None:
        generation, seat, number = tf.unstack(numbers)
        with self._ledger.tracing(), self._data_waits.noted():

            def contribute(key: tf.Tensor, position: Any) -> list:
                skip(iterator, not_negative(position - self._progress_of(generation)))
                index, batch = self._next(iterator)
                self._note_progress(generation, index + 1)
                return update.stage(key, functools.partial(self._traced_step, 0, index, batch))

            rounds.work(seat, number, contribute)
