"""Traces the steps of a model: one of them, or as many as a loop in a graph runs.

Functions that return something are compiled as Keras' are: TensorFlow leaves out what is of no use
in those without outputs, and then writes sums in another order.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kerasdist.training.context import peers, running_call
from kerasdist.training.data import batches
from kerasdist.training.hooks import update_callback
from kerasdist.training.replica import graph_facts
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.step.repeated_batches import RepeatedBatches
from kerasdist.training.step.worker_news import WorkerNews

_NEXT_SIZE = "examples of the next batch"


class StepResult(NamedTuple):
    """What a step returns: read from here it costs a hundredth of what a variable costs.

    Attributes:
        num_examples: Of the global batch.
        num_stop_requests: Workers that want to stop; None where there is one.
        is_discarded: See `replica_run.GlobalStep`.
    """

    num_examples: Any
    num_stop_requests: Any
    is_discarded: Any


class TracedSteps:
    """The steps of a model, to be traced or run eagerly.

    Steps at which no callback looks are unobserved, and are traced without what that takes.

    Args:
        model: Their model.
        step: The `ModelStep`.
        repeated: What the replicas have of a batch.
        news: What the workers tell each other.
        tracing: Makes a context around the trace of a step.
    """

    def __init__(
        self,
        model: keras.Model,
        step: ModelStep,
        repeated: RepeatedBatches,
        news: WorkerNews,
        *,
        tracing: Callable[[], contextlib.AbstractContextManager],
    ):
        self._model, self._strategy = model, model.distribute_strategy
        self._step, self._repeated, self._news, self._tracing = step, repeated, news, tracing
        self._lookers = update_callback.overriding("looks_within", step.callbacks)
        self._is_always_observed = not self._lookers
        self._ran: set[bool] = set()  # Whether these were unobserved.

    @property
    def is_unobserved(self) -> bool:
        """Whether no callback looks at a step that is traced now."""
        return self._step.is_unobserved

    def begin_call(self, num_steps: int) -> bool:
        """Decides whether a call has unobserved steps; returns whether they are the first such.

        The first call is not: what is wrong with the rest must show there, and not an hour later.

        Args:
            num_steps: How many there are at most.
        """
        if self._ran and not self._is_always_observed:
            self._step.is_unobserved = not any(
                each.looks_within(num_steps) for each in self._lookers
            )
        is_first = self.is_unobserved not in self._ran
        if is_first and self._ran:
            running_call.leave_out_of_rates(self._model)
        self._ran.add(self.is_unobserved)
        return is_first

    def one(self, batch: Any) -> StepResult:
        """Runs a step with a global batch, or with the part of it that this worker has prepared."""
        batch = batches.without_optionals(batch)
        is_part = isinstance(batch, batches.WorkerPart)
        replicas = peers.local_replicas(self._strategy)
        num_parts = len(replicas) if is_part else self._strategy.num_replicas_in_sync
        rows = batches.rows_of(batch)
        checks = [*self._look_at(rows, num_parts=num_parts), *self._news.note_batch(batch)]
        return self._run(rows, self._repeated.shares_of(batch), checks)[0]

    def next(self, iterator: Any) -> StepResult:
        """Runs a step with the next batch."""
        return self.one(self.read(lambda: next(iterator)))

    def exactly(self, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        """Runs so many steps, for which there is data; returns how many.

        Args:
            iterator: The data.
            num_steps: int32 scalar.
        """

        def body(step: Any):
            self.next(iterator)
            return step + 1

        (num_taken,) = _loop(lambda step: step < num_steps, body, [0])
        return num_taken

    def while_data(self, iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
        """Runs at most so many steps, of data that may end before; returns how many there were.

        Args:
            iterator: The data.
            num_steps: int32 scalar.
        """

        def read():
            batch = iterator.get_next_as_optional()
            return batch, batch.has_value()

        def body(step: Any, _: tf.Tensor):
            batch, has_value = self.read(read)

            def run():
                return tf.cast(self.one(batch.get_value()).num_examples, tf.int32)

            tf.cond(has_value, run, lambda: 0)
            return step + tf.cast(has_value, tf.int32), has_value

        num_taken, _ = _loop(
            lambda step, has_value: has_value & (step < num_steps), body, [0, True]
        )
        return num_taken

    def with_own_batches(self, iterator: Any, num_steps: tf.Tensor, size: Any) -> Any:
        """Runs steps until no worker has data; returns how many, and the size of the next one.

        Args:
            iterator: The data of this worker.
            num_steps: int32 scalar, how many at most.
            size: int64 scalar, the examples of all workers in the first of them; 0 if there are
                none.
        """

        def body(step: Any, size: tf.Tensor):
            batch, own_size, next_size = self.read(lambda: next(iterator))
            return step + 1, self.one_with_own_batch(batch, own_size, next_size, size=size)

        return _loop(lambda step, size: (step < num_steps) & (size > 0), body, [0, size])

    def read(self, read: Callable) -> Any:
        """Returns what `read()` gives, a batch, and counts it; traced, or eager."""
        batch = self._step.times.of_input(read)
        self._news.note_read(batch)
        return batch

    def one_with_own_batch(
        self, batch: Any, own_size: tf.Tensor, next_size: tf.Tensor, *, size: tf.Tensor
    ) -> tf.Tensor:
        """Runs a step with a batch of this worker's own; returns the size of the next global one.

        Args:
            batch: The examples of this worker.
            own_size: int64 scalar, how many they are.
            next_size: int64 scalar, the examples of this worker in the next step.
            size: int64 scalar, the examples of all workers.
        """
        shares = batches.shares_of_own(batch, self._strategy, own_size, size)
        checks = self._look_at(batch, num_parts=len(shares.data))
        next_size = tf.cast(next_size, tf.float32)
        _, sums = self._run(batch, shares, checks, ((_NEXT_SIZE, next_size),))
        if _NEXT_SIZE not in sums:  # In `evaluate`.
            return tf.cast(peers.sum_in_graph(self._strategy, next_size), tf.int64)
        return tf.cast(sums[_NEXT_SIZE], tf.int64)

    def _look_at(self, batch: Any, *, num_parts: int) -> list[tf.Tensor]:
        is_first = tf.equal(self._step.num_examples, 0)
        return self._step.look_at(batch, is_first=is_first, num_parts=num_parts)

    def _run(
        self, batch: Any, shares: batches.Shares, checks: list[tf.Tensor], extra_sums: tuple = ()
    ) -> tuple[StepResult, dict[str, tf.Tensor]]:
        """Runs a step with shares; returns what a step returns, and the extra sums."""
        extra_sums = (*self._news.extra_sums(), *extra_sums)
        with self._tracing():
            result = self._step.run(batch, shares, checks=checks, extra_sums=extra_sums)
        if self._lookers and not tf.executing_eagerly() and not self.is_unobserved:
            # Two graphs would draw other numbers than one, and end with other weights.
            self._is_always_observed |= graph_facts.has_state_of_draws(
                tf.compat.v1.get_default_graph()
            )
        num_stop_requests = self._news.hear(result.sums, batch, checks)
        return StepResult(result.num_examples, num_stop_requests, result.is_discarded), result.sums


def _loop(condition: Callable, body: Callable, begin: list) -> Any:
    return tf.while_loop(condition, body, begin, parallel_iterations=1)
