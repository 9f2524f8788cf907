"""The function that `fit` and `evaluate` call for every step.

It takes global batches, runs the model's own train_step (or test_step) on every replica, and
returns logs that nobody has computed yet. `steps_per_execution` steps run inside one call.
"""

import functools
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from kerasdist.private import keras_fit
from kerasdist.training.context import deployment, peers, running_call
from kerasdist.training.data import batches, data_checks
from kerasdist.training.data.batches import without_optionals
from kerasdist.training.data.epoch_iterator import GlobalBatches
from kerasdist.training.hooks import graph_checks, step_variables, update_callback
from kerasdist.training.hooks.lazy_logs import LazyLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.replica import graph_facts
from kerasdist.training.step import graph_errors, replica_run, step_loops
from kerasdist.training.step.first_step_check import FirstStepCheck
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.step.repeated_batches import RepeatedBatches
from kerasdist.training.step.step_graphs import ITERATORS, StepGraphs

_STOP = "stop requests"
_NEXT_SIZE = "examples of the next batch"


class _News(NamedTuple):
    """What a step returns: read from here it costs a hundredth of what a variable costs.

    Attributes:
        num_examples: Of the global batch.
        num_stop_requests: Workers that want to stop; None where there is one.
        is_discarded: See `replica_run.GlobalStep`.
    """

    num_examples: Any
    num_stop_requests: Any
    is_discarded: Any


class StepFunction(TrainFunction):
    """Runs one or more steps of a model over the replicas of its strategy.

    Args:
        model: A compiled model of one of our strategies.
        step: The model's bound train_step or test_step.
        rehearse: Looks at the first step before it runs, and at later ones that may show more; says
            whether every replica is to have the whole batch, as `trial.fit.warn_of_differences`
            does; or None.
        **arguments: Further ones of `ModelStep`.
    """

    def __init__(self, model, step, *, rehearse: Callable | None = None, **arguments):
        self._model = model
        self._strategy = model.distribute_strategy
        self._step = ModelStep(model, step, **arguments)
        self.callbacks = self._step.callbacks
        self.num_examples = self._step.num_examples
        self.losses, self.times = self._step.losses, self._step.times
        with step_variables.being_made(self._strategy), tf.device("CPU:0"):
            self._stop_request = tf.Variable(0.0, trainable=False)
            self._num_stop_requests = tf.Variable(0.0, trainable=False)
            self._digest = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._is_digest_due = tf.Variable(True, trainable=False)
            self._num_read: Any = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._watch = deployment.of(self._strategy).step_watch
        self._is_alone = peers.count(self._strategy) == 1
        self._lookers = update_callback.overriding("looks_within", self.callbacks)
        self._repeated = RepeatedBatches(model, self._step)
        self._graphs = StepGraphs(model, self._repeated, expect_trace=self._expect_long_call)
        self._ran: set[bool] = set()  # Whether these were quiet.
        self._is_never_quiet = not self._lookers
        self._news: _News | None = None  # Of a call of one step.
        self._is_first_call = self._is_comparison_due = True
        self._check = FirstStepCheck(model, self._step, rehearse, before=self._begin_check)

    @property
    def is_repeated(self) -> bool:
        return self._repeated.are_on

    @property
    def was_checked(self) -> bool:
        return self._check.is_made

    def restart(self) -> None:
        self._step.restart()
        self._stop_request.assign(0)
        self._num_stop_requests.assign(0)
        self._news = None
        self._is_first_call = True
        if not self._is_alone:
            self.look_again()

    def look_again(self) -> None:
        self._is_digest_due.assign(True)
        self._is_comparison_due = True

    def trace_again(self) -> None:
        self._graphs.clear()

    def request_stop(self) -> None:
        self._stop_request.assign(1)

    @property
    def is_stop_requested(self) -> bool:
        if self._news is not None:
            requests = self._news.num_stop_requests
            return requests is not None and float(requests) > 0
        return float(tf.convert_to_tensor(self._num_stop_requests)) > 0

    @property
    def may_have_discarded(self) -> bool:
        if self._news is None:
            return True
        return self._news.is_discarded is not None and bool(self._news.is_discarded)

    def __call__(self, data) -> dict:
        """Runs the steps that `data` asks for.

        Args:
            data: `GlobalBatches`, or (from `train_on_batch`) an iterator over batches.

        Returns:
            `LazyLogs`; for `train_on_batch` what Keras expects there.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        self._step.begin()
        is_first = self._begin_call(data)
        if self._watch is None:
            return self._call(data)
        with self._watch.call(lambda: int(self._num_read.numpy()), is_first=is_first):
            return self._call(data)

    def _begin_call(self, data) -> bool:
        """Decides whether the steps of a call are quiet; returns whether they are the first such.

        The first call is not: what is wrong with the rest must show there, and not an hour later.
        """
        if self._ran and not self._is_never_quiet:
            num_steps = data.num_steps if isinstance(data, GlobalBatches) else 1
            self._step.is_quiet = not any(each.looks_within(num_steps) for each in self._lookers)
        is_first = self._step.is_quiet not in self._ran
        if is_first and self._ran:
            running_call.leave_out_of_rates(self._model)
        self._ran.add(self._step.is_quiet)
        return is_first

    def _run_method(self, method: types.MethodType, *inputs, **arguments):
        return self._graphs.run(method, *inputs, is_quiet=self._step.is_quiet, **arguments)

    def _expect_long_call(self) -> None:
        if self._watch is not None:
            self._watch.expect_trace()

    def _run_batch(self, batch) -> None:
        self._run_method(self._one_step, batch, reduce_retracing=True)

    def _call(self, data) -> dict:
        start = time.perf_counter()
        self._news = None
        self._repeated.read_metrics()
        self._repeated.see(data)
        if self._is_first_call or (isinstance(data, GlobalBatches) and data.first_step == 0):
            self._check.begin(are_divided=not self.is_repeated)
        is_unchecked = self._check.is_missed() and self._model.run_eagerly
        if is_unchecked:
            # What counts in Python would begin with a number for each replica.
            self._repeated.switch(on=self._repeated.are_possible)
        try:
            self._run(data)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except Exception as error:
            told, cause = self._explained(error)
            if told is error:
                raise
            raise told from cause
        self._check.end()
        if is_unchecked:
            self._check.note_built()
            self._repeated.switch(on=False)
        if self._is_first_call:
            self._is_first_call = False
            self._step.warn_of_batch(is_divided=not self.is_repeated)
        if self._is_comparison_due and not self._is_alone:
            data_checks.check_equal_batches(self._strategy, tf.convert_to_tensor(self._digest))
        self._is_comparison_due = False
        self.times.add_call(time.perf_counter() - start)
        logs = self._logs()
        if isinstance(data, GlobalBatches):
            return logs
        return keras_fit.logs_of_batch(logs, is_eager=self._model.run_eagerly)

    def _explained(self, error: Exception) -> tuple[Exception, Exception | None]:
        """Returns the error that is raised in place of one, and what is shown as its cause."""
        told = graph_checks.explained(error)
        if told is not error:
            return told, None
        if self.is_repeated and isinstance(error, tf.errors.ResourceExhaustedError):
            error.add_note(graph_errors.MEMORY_OF_WHOLE_BATCH)
        if self._strategy.num_replicas_in_sync > 1:
            step = self._step
            told = graph_errors.of_parts(error, self._model, step.step, step.first_axes.describe())
        return told, error

    def _logs(self) -> LazyLogs:
        return LazyLogs(
            self._step.logs.read,
            read_of_worker=None if self._is_alone else self._step.logs.read_of_worker,
            nesting=self._step.logs.nesting,
        )

    def _run(self, data):
        if not isinstance(data, GlobalBatches):
            for batch in map(batches.as_tensors, data):
                self._build(self._one_step, batch, reduce_retracing=True)
                self._check_batch(without_optionals(batch))
                self._run_batch(batch)
            return
        if data.next_size is not None:
            self._take_own_steps(data)
            return
        num_taken = self._take_checked(data)
        if num_taken < data.num_steps:
            num_taken += self._take(data.iterator, data.num_steps - num_taken, data)
        data.answer(num_taken)

    def _take_checked(self, data) -> int:
        """Looks at a first step where that is due, and runs it; returns how many steps it was."""
        if not (self._check.can_be_made() or self._is_to_be_built()):
            return 0
        iterator = data.iterator
        batch = next(iterator)
        is_dataset = isinstance(iterator, tf.data.Iterator)
        again = iter(batches.dataset_of(batch, iterator.element_spec)) if is_dataset else None
        if again is None:
            self._build(self._one_step, batch, reduce_retracing=True)
        else:
            self._build(*self._steps_of(again, 1, data))
        own = without_optionals(batches.in_one_piece(batch, self._strategy))
        if data.is_distributed:
            self._check_own_batch(own, batches.num_examples(own))
        else:
            self._check_batch(own)
        if again is None:
            self._run_batch(batch)
            return 1
        return self._take(again, 1, data)

    def _take(self, iterator, num_steps: int, data) -> int:
        """Runs so many of the steps that `data` asks for; returns how many there were."""
        if self._model.run_eagerly or not isinstance(iterator, ITERATORS):
            return self._steps_in_python(iterator, num_steps)
        result = self._run_method(*self._steps_of(iterator, num_steps, data))
        if data.num_steps == 1:
            self._news = result
            return 1
        return num_steps if data.is_exact else int(result)

    def _steps_of(self, iterator, num_steps: int, data) -> tuple:
        """Returns the method that runs steps for `data` in a graph, and its arguments."""
        if data.num_steps == 1:
            return self._next_step, iterator
        method = self._exact_steps if data.is_exact else self._steps_while_data
        return method, iterator, tf.constant(num_steps)

    def _is_to_be_built(self) -> bool:
        """Whether a trace of the first step is to make the variables, before it is checked."""
        return self._check.is_missed() and not self._model.run_eagerly

    def _build(self, method: types.MethodType, *inputs, **arguments) -> None:
        if self._is_to_be_built():
            self._graphs.trace(method, *inputs, is_quiet=self._step.is_quiet, **arguments)
            self._check.note_built()

    def _check_batch(self, batch) -> None:
        self._heed(self._check.of_batch(batch, may_repeat=self._repeated.are_possible))

    def _check_own_batch(self, batch, num_examples) -> None:
        may_repeat = self._repeated.are_possible
        self._heed(self._check.of_own_batch(batch, num_examples, may_repeat=may_repeat))

    def _heed(self, needs_whole_batches: bool) -> None:
        if needs_whole_batches:
            self._repeated.switch(on=True)
        self._graphs.tell_failure(is_told=needs_whole_batches)

    def _begin_check(self) -> None:
        self._expect_long_call()
        if not self._is_first_call:
            running_call.leave_out_of_rates(self._model)

    def _take_own_steps(self, data):
        iterator, num_taken, next_size = data.iterator, 0, data.next_size
        run = functools.partial(self._run_method, self._own_steps)
        is_looked_at = self._check.can_be_made() or self._is_to_be_built()
        if is_looked_at and next_size > 0:
            element = batch, num_examples, _ = next(iterator)
            again = iter(batches.dataset_of(element, iterator.element_spec))
            self._build(self._own_steps, again, tf.constant(1), next_size)
            self._check_own_batch(without_optionals(batch), num_examples)
            num_taken, next_size = run(again, tf.constant(1), next_size)
        num_left = data.num_steps - int(num_taken)
        if num_left:
            more, next_size = run(iterator, tf.constant(num_left), next_size)
            num_taken += more
        data.answer(int(num_taken), next_size)

    def _one_step(self, batch) -> _News:
        """Runs a step with a global batch."""
        batch = without_optionals(batch)
        num_replicas = self._strategy.num_replicas_in_sync
        is_first = tf.equal(self.num_examples, 0)
        checks = self._step.look_at(batch, is_first=is_first, num_parts=num_replicas)
        if not self._is_alone:
            is_due = self._is_digest_due.read_value()
            digest = tf.cond(is_due, lambda: data_checks.digest(batch), self._digest.read_value)
            with tf.control_dependencies([self._digest.assign(digest)]):
                checks = [*checks, self._is_digest_due.assign(False)]
        result = self._run_shares(batch, self._repeated.shares_of(batch), checks=checks)
        return _News(result.num_examples, result.sums.get(_STOP), result.is_discarded)

    def _one_own_step(self, batch, own_size, next_size, *, size):
        """Runs a step with a batch of this worker's own; returns the size of the next global one.

        Args:
            batch: The examples of this worker.
            own_size: int64 scalar, how many they are.
            next_size: int64 scalar, the examples of this worker in the next step.
            size: int64 scalar, the examples of all workers.
        """
        shares = batches.shares_of_own(batch, self._strategy, own_size, size)
        is_first = tf.equal(self.num_examples, 0)
        checks = self._step.look_at(batch, is_first=is_first, num_parts=len(shares.data))
        next_size = tf.cast(next_size, tf.float32)
        extra_sums = ((_NEXT_SIZE, next_size),)
        result = self._run_shares(batch, shares, checks=checks, extra_sums=extra_sums)
        if _NEXT_SIZE not in result.sums:  # In `evaluate`.
            return tf.cast(peers.sum_in_graph(self._strategy, next_size), tf.int64)
        return tf.cast(result.sums[_NEXT_SIZE], tf.int64)

    def _run_shares(self, batch, shares, *, checks, extra_sums=()):
        extra_sums = (*self._extra_sums(), *extra_sums)
        with self._graphs.tracing():
            result = self._step.run(batch, shares, checks=checks, extra_sums=extra_sums)
        self._check.note_trace()
        if self._lookers and not tf.executing_eagerly() and not self._step.is_quiet:
            # Two graphs would draw other numbers than one, and end with other weights.
            self._is_never_quiet |= graph_facts.has_state_of_draws(tf.compat.v1.get_default_graph())
        if _STOP in result.sums:
            with replica_run.after(batch, checks):
                self._num_stop_requests.assign(tf.cast(result.sums[_STOP], tf.float32))
        return result

    def _extra_sums(self):
        if self._is_alone:
            return ()
        return ((_STOP, self._stop_request.read_value()),)

    def _next_of(self, read: Callable):
        """Returns what `read()` gives, a batch; traced, or eager."""
        batch = self.times.of_input(read)
        if self._watch is not None:
            with replica_run.after(batch):
                self._num_read.assign_add(1)
        return batch

    def _next_step(self, iterator):
        return self._one_step(self._next_of(lambda: next(iterator)))

    def _exact_steps(self, iterator, num_steps):
        read = functools.partial(self._next_of, lambda: next(iterator))
        return step_loops.exactly(num_steps, next_batch=read, run_step=self._one_step)

    def _steps_while_data(self, iterator, num_steps):
        def read():
            batch = iterator.get_next_as_optional()
            return batch, batch.has_value()

        return step_loops.while_there_is_data(
            num_steps,
            next_batch=functools.partial(self._next_of, read),
            run_step=lambda batch: tf.cast(self._one_step(batch).num_examples, tf.int32),
        )

    def _own_steps(self, iterator, num_steps, size):
        read = functools.partial(self._next_of, lambda: next(iterator))
        return step_loops.of_own_batches(
            num_steps, size, next_batch=read, run_step=self._one_own_step
        )

    def _steps_in_python(self, iterator, num_steps: int) -> int:
        for num_taken in range(num_steps):
            batch = self._next_of(lambda: next(iterator, None))
            if batch is None:
                return num_taken
            self._run_batch(batch)
        return num_steps
