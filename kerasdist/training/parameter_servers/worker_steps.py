"""Traces the graphs of workers: steps with batches that they read themselves, or are sent.

The chief traces these functions, and they run on a worker.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts, keras_optimizers, variable_adapter
from kerasdist.training.context import deployment
from kerasdist.training.data import batches
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.parameter_servers.epoch_iterator import Call
from kerasdist.training.parameter_servers.ledger import CLOSED, Ledger
from kerasdist.training.parameter_servers.local_copies import LocalCopies, fetched
from kerasdist.training.parameter_servers.local_counts import LocalCounts
from kerasdist.training.step.model_step import ModelStep, TraceAgainError
from kerasdist.training.step.replica_run import GlobalStep

# Steps in each iteration of a long loop, where steps take little longer than their messages: an
# iteration costs three messages of its own between a worker and each parameter server.
_AT_ONCE = 4


class WorkerSteps:
    """The graphs of calls: of one step or of some, of data that ends, and of lost calls.

    Args:
        model: The model.
        model_step: Its step.
        copies: Of its variables, on the workers; None with a custom step.
        ledger: Notes how far each call has come.

    Attributes:
        counts: What steps count.
        progress: Name under which a worker keeps the position that it has reached.
        next_again: As the function of `of_call`, called with (iterators, number of steps, done),
            for steps of a lost call whose data has no positions.
    """

    def __init__(
        self,
        model: keras.Model,
        model_step: ModelStep,
        *,
        copies: LocalCopies | None,
        ledger: Ledger,
    ):
        self._strategy = model.distribute_strategy
        self._data_waits = deployment.remote_workers(self._strategy).data_waits
        self._model_step = model_step
        self._copies = copies
        self._ledger = ledger
        self._optimizers = keras_optimizers.optimizers_of(model)
        is_stock = custom_parts.is_original_step(model_step.step)
        # A custom step may reset what is a sum otherwise, or assign to it.
        metrics_of = custom_parts.custom_metrics_of if is_stock else custom_parts.all_metrics_of
        self.counts = LocalCounts(
            model.metrics_variables,
            model_step.num_examples,
            ledger,
            unsure_metrics=metrics_of(model),
        )
        self.progress = variable_adapter.unique_name()
        self._run_step_at = graph_function(self._step_at)
        self._run_next_step = graph_function(self._next_step)
        # The key is the number of steps in each iteration.
        self._run_steps_at, self._run_next_steps = (
            {number: graph_function(functools.partial(loop, number)) for number in (1, _AT_ONCE)}
            for loop in (self._steps_at, self._next_steps)
        )
        self._run_steps_to_the_end = graph_function(self._steps_to_the_end)
        self._run_given = graph_function(self._given_step, reduce_retracing=True)
        # Traced once a worker is lost.
        self._run_given_again = graph_function(self._given_step_again, reduce_retracing=True)
        self.next_again = graph_function(self._next_steps_again)

    def of_call(self, call: Call, *, has_lost: bool) -> tuple[Callable, list[int]]:
        """Returns what runs the steps of a call whose batches its worker reads.

        Args:
            call: The call.
            has_lost: Whether a worker was lost.

        Returns:
            A function of the worker's iterator, and the numbers that it takes besides, if any.
        """
        source = call.calls.source
        is_long = call.num_steps >= 2 * _AT_ONCE and self._copies and self._copies.are_all
        at_once = _AT_ONCE if is_long else 1
        if not source.data.is_strict:
            if call.num_steps == 1:
                return self._run_next_step, []
            return self._run_next_steps[at_once], [call.num_steps]
        numbers = [source.generation, call.position, call.num_steps]
        if not source.data.is_counted:
            return self._run_steps_to_the_end, numbers
        # Without a lost worker, hardly one is past a position: one step then needs no loop.
        is_simple = call.num_steps == 1 and not has_lost
        return self._run_step_at if is_simple else self._run_steps_at[at_once], numbers

    def of_batch(self, position: int, done: np.ndarray | None) -> tuple[Callable, list]:
        """Returns what runs the step of a batch that the chief sends.

        Args:
            position: Of the batch, from 0.
            done: How far the step has come before, of `Ledger.close`; None if it has not begun.

        Returns:
            A function of the batch, and what else it takes.
        """
        numbers = [tf.constant(position, tf.int64)]
        if done is None:
            return self._run_given, numbers
        return self._run_given_again, [*numbers, tf.constant(done)]

    def _step_at(self, iterator: Iterator, numbers: tf.Tensor) -> tf.Tensor:
        """Runs the step at a position; returns it, and 1.

        Fails where the worker is past it, and the call is then a lost one. It came late: when a
        worker is lost, TensorFlow puts what it had not begun behind all that waits.
        """
        generation, position, _ = tf.unstack(numbers)
        skip(iterator, not_negative(position - self._progress_of(generation)))
        with self._collected() as num_examples:
            index, batch = self._next(iterator)
            self._note_progress(generation, index + 1)
            self._one_step(0, index, batch, num_examples)
        return tf.stack([index, tf.ones_like(index)])

    def _steps_at(self, at_once: int, iterator: Iterator, numbers: tf.Tensor) -> tf.Tensor:
        """Runs some steps from a position on; returns it, and how many.

        None are run, and the position is -1, where the worker is past it.
        """
        position, num_skipped, num_steps = self._begin_steps(numbers)
        skip(iterator, num_skipped)
        self._next_steps(at_once, iterator, num_steps)
        return tf.stack([position, num_steps])

    def _steps_to_the_end(self, iterator: Any, numbers: tf.Tensor) -> tf.Tensor:
        """As `_steps_at`, of data that may end before."""
        position, num_skipped, num_steps = self._begin_steps(numbers)
        with self._collected() as num_examples:

            def body(count: Any, num_taken: Any, _: Any) -> tuple:
                element, has_value = self._of_input(lambda: _next_or_none(iterator))
                runs = has_value & (count >= num_skipped)
                tf.cond(
                    runs,
                    lambda: self._one_step(num_taken, *element.get_value(), num_examples),
                    lambda: None,
                )
                return count + 1, num_taken + tf.cast(runs, tf.int64), has_value

            zero = tf.zeros_like(position)
            _, num_taken, _ = tf.while_loop(
                lambda count, _, has_value: has_value & (count < num_skipped + num_steps),
                body,
                [zero, zero, True],
                parallel_iterations=1,
            )
        return tf.stack([position, num_taken])

    def _begin_steps(self, numbers: tf.Tensor) -> tuple:
        """Notes that the worker goes on to the end of some steps.

        Returns:
            Their position, how many batches are before it, and how many steps there are: -1, 0 and
            0 where the worker is past it.
        """
        generation, position, num_steps = tf.unstack(numbers)
        reached = self._progress_of(generation)
        is_missed, zero = reached > position, tf.zeros_like(position)
        num_skipped = tf.maximum(position - reached, zero)
        num_steps = tf.where(is_missed, zero, num_steps)
        self._note_progress(generation, reached + num_skipped + num_steps)
        return tf.where(is_missed, zero - 1, position), num_skipped, num_steps

    def _next_step(self, iterator: Iterator) -> None:
        with self._collected() as num_examples:
            self._one_step(0, *self._next(iterator), num_examples)

    def _next_steps(self, at_once: int, iterator: Iterator, num_steps: tf.Tensor) -> None:
        num_steps = tf.reshape(num_steps, [])
        with self._collected() as num_examples:

            def run(step: tf.Tensor) -> None:
                self._one_step(step, *self._next(iterator), num_examples)

            num_looped = num_steps // at_once
            if at_once > 1:
                repeat(num_looped, lambda loop: [run(loop * at_once + i) for i in range(at_once)])
                num_looped *= at_once
                repeat(num_steps - num_looped, lambda step: run(num_looped + step))
            else:
                repeat(num_steps, run)

    def _next_steps_again(self, iterator: Iterator, num_steps: tf.Tensor, done: tf.Tensor) -> None:
        """Makes what is missing of some steps, of which every batch is counted."""
        with self._collected(done) as num_examples:
            repeat(
                num_steps,
                lambda step: self._one_step(step, *self._next(iterator), num_examples),
            )

    def _given_step(self, batch: Any, position: tf.Tensor) -> None:
        self._given_step_again(batch, position, None)

    def _given_step_again(self, batch: Any, position: tf.Tensor, done: tf.Tensor | None) -> None:
        with self._collected(done) as num_examples:
            self._one_step(0, position, batch, num_examples)

    @contextlib.contextmanager
    def _collected(self, done: tf.Tensor | None = None) -> Generator[tf.Variable]:
        """Traces the steps of a call; yields the variable that counts its examples."""
        with (
            self._ledger.tracing(done),
            self._data_waits.noted(),
            self.counts.collected() as num_examples,
            self._model_step.times.collected(num_examples),
        ):
            yield num_examples

    def _next(self, iterator: Iterator) -> tuple:
        return self._of_input(lambda: next(iterator))

    def _of_input(self, read: Callable) -> tuple:
        return self._data_waits.of_input(lambda: self._model_step.times.of_input(read))

    def _progress_of(self, generation: tf.Tensor) -> tf.Tensor:
        """Returns the position that the worker's iterator over this data has reached."""
        with tf.device("/device:CPU:0"):
            last, position = tf.unstack(variable_adapter.worker_numbers(self.progress, 2))
        return tf.where(tf.equal(last, generation), position, tf.zeros_like(position))

    def _note_progress(self, generation: tf.Tensor, position: tf.Tensor) -> None:
        with tf.device("/device:CPU:0"):
            numbers = tf.stack([tf.cast(generation, tf.int64), tf.cast(position, tf.int64)])
            variable_adapter.note_worker_numbers(self.progress, numbers)

    def _one_step(
        self, step: tf.Tensor | int, position: tf.Tensor, batch: Any, num_examples: tf.Variable
    ) -> None:
        self._traced_step(step, position, batch, num_examples)

    def _replica_of(self, position: tf.Tensor) -> Any:
        """Returns as which replica the step at a position draws; None for the only one."""
        return None

    def _traced_step(
        self,
        step: tf.Tensor | int,
        position: tf.Tensor,
        batch: Any,
        num_examples: tf.Variable,
        *,
        fetch: Callable[[list], list] = fetched,
    ) -> GlobalStep:
        batch = batches.without_optionals(batch)
        checks = self._model_step.look_at(batch, is_first=tf.equal(position, 0))
        shares = batches.shares_of(batch, self._strategy)
        held = self._copies.held(fetch) if self._copies else contextlib.nullcontext([])
        with self._ledger.at_step(step), held as copied:
            self._model_step.times.begin_step([batch, copied], self._optimizers)
            result = self._model_step.run(
                batch,
                shares,
                checks=checks,
                counter=num_examples,
                replica_id=self._replica_of(position),
            )
        if self.counts.has_found_others(self._model_step.logs.metrics_computed_with()):
            raise TraceAgainError
        return result


def repeat(num_steps: Any, run: Callable[[Any], object]) -> None:
    """Traces so many times what `run(index)` does."""

    def body(step: Any) -> Any:
        run(step)
        return step + 1

    start = tf.constant(0, tf.int64)
    tf.while_loop(lambda step: step < num_steps, body, [start], parallel_iterations=1)


def _next_or_none(iterator: Any) -> tuple:
    element = iterator.get_next_as_optional()
    return element, element.has_value()


def not_negative(number: Any) -> tf.Tensor:
    """Returns a scalar, or fails as a call does that was given up; an Assert costs messages."""
    with tf.device("/device:CPU:0"):
        return tf.gather([number], tf.cast(number < 0, tf.int64), name=CLOSED)


def skip(iterator: Iterator, num_batches: tf.Tensor) -> None:
    """Reads so many batches that others take."""
    repeat(num_batches, lambda _: next(iterator))
