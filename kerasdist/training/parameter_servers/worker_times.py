"""Measures on workers where time goes, how old their weights are, and if they wait for data.

A worker measures for itself, and adds what it has measured at the end of a call to variables of the
first parameter server, a row for each worker. What a lost worker has not added counts for nothing.
A synchronous one adds it after each batch. How long these calls take the chief measures.
Whether it waits for its data the chief asks it, where it is late.
"""

import collections
import contextlib
import math
import threading
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.cluster import Task
from kerasdist.private import keras_optimizers, scopes, variable_adapter
from kerasdist.training.context import deployment
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers import sharded_variables
from kerasdist.training.step import step_times

# The columns of what a worker measures; after them the bytes sent to each ps task. All are sums
# over the steps of a call, except the largest staleness, which must not be summed over calls.
_STEPS, _EXAMPLES, _SECS, _INPUT_SECS, _COMPUTE_SECS, _STALENESS, _MAX_STALENESS = range(7)
_FIRST_BYTES = 7
# A worker that is halted never answers.
_ANSWER_SECS = 2.0
_BEGUN, _ENDED = [1, 0], [0, 1]


class WorkerTimes:
    """How long the steps of each worker wait, and for what.

    The staleness of a step is how many updates were made between the moment it read the weights, or
    was told its batch where it is synchronous, and that at which it has its gradients.

    Args:
        strategy: A ParameterServerStrategy of ours.
        is_on: Whether to measure at all; never done without a clock.
    """

    def __init__(self, strategy: Any, *, is_on: bool):
        self._is_on = is_on and step_times.has_clock()
        self._name = variable_adapter.unique_name()
        self._row: Any = None  # While a call is traced.
        self._computes_since: Any = None  # While a step is.
        self._updates_before: dict = {}
        self._is_of_batch = False  # Whether that is of a batch, and not of each step of a call.
        self._secs_of_calls = 0.0
        if not self._is_on:
            return
        cluster = deployment.of(strategy).cluster
        num_ps = len(cluster.jobs["ps"])
        self._row_spec = tf.TensorSpec([_FIRST_BYTES + num_ps], tf.float64)
        self._steps_taken, self._bytes_taken = 0.0, np.zeros(num_ps)
        with scopes.outside_scopes(), tf.device("/job:ps/task:0/device:CPU:0"):
            zeros = tf.zeros([cluster.num_workers, *self._row_spec.shape], tf.float64)
            self._rows: Any = tf.Variable(zeros, trainable=False)
            self._largest: Any = tf.Variable(zeros[:, 0], trainable=False)

    def read(self) -> np.ndarray:
        """Returns float64 [workers, `step_times.NUM_COLUMNS`]; no rows if it is not on."""
        if not self._is_on:
            return np.zeros([0, step_times.NUM_COLUMNS])
        rows = self._rows.numpy()
        result = np.zeros([len(rows), step_times.NUM_COLUMNS])
        result[:, step_times.STEPS] = rows[:, _STEPS]
        result[:, step_times.EXAMPLES] = rows[:, _EXAMPLES]
        result[:, step_times.SECS_IN_STEPS] = rows[:, _SECS] + self._secs_of_calls
        result[:, step_times.INPUT_SECS] = rows[:, _INPUT_SECS]
        known = rows[:, _INPUT_SECS] + rows[:, _COMPUTE_SECS]
        result[:, step_times.EXCHANGE_SECS] = result[:, step_times.SECS_IN_STEPS] - known
        result[:, step_times.STALENESS] = rows[:, _STALENESS]
        return result

    def take_numbers(self) -> dict[str, float]:
        """Returns the largest staleness, and bytes of a step to each ps, since the last call.

        No bytes where no step has ended since; nothing if it is not on.
        """
        if not self._is_on:
            return {}
        rows, largest = self._rows.numpy(), self._largest.numpy()
        self._largest.assign(tf.zeros_like(self._largest))
        num_steps, num_bytes = rows[:, _STEPS].sum(), rows[:, _FIRST_BYTES:].sum(axis=0)
        new_steps, new_bytes = num_steps - self._steps_taken, num_bytes - self._bytes_taken
        self._steps_taken, self._bytes_taken = num_steps, num_bytes
        numbers = {"staleness/max": float(largest.max())}
        if new_steps:
            for ps, each in enumerate(new_bytes / new_steps):
                numbers[f"gradient_bytes/ps {ps}"] = float(each)
        return numbers

    def add_call(self, secs: float) -> None:
        """Counts the seconds of a call, in which all workers compute batches or wait for others."""
        self._secs_of_calls += secs

    # What follows is traced by the chief and runs on a worker.

    @contextlib.contextmanager
    def collected(self, num_examples: tf.Variable) -> Generator[None]:
        """Traces the steps of a call, and what adds up what they took.

        Args:
            num_examples: The worker's own variable that counts the examples of the call.
        """
        if not self._is_on:
            yield
            return
        with self._begun(lambda: {_SECS: -tf.timestamp()}):
            yield
            row, examples = self._row.read_value(), num_examples.read_value()
            now = step_times.stamp_after([row, examples])
            self._hand_over(row + self._columns({_SECS: now, _EXAMPLES: examples}))

    @contextlib.contextmanager
    def of_batch(self, optimizers: list) -> Generator[None]:
        """Traces the step of a batch of a synchronous worker, and what adds up what it took.

        Args:
            optimizers: Those that the model has.
        """
        if not self._is_on:
            yield
            return
        self._is_of_batch = True
        self._note_updates(optimizers)
        try:
            with self._begun(dict):
                yield
                self._hand_over(self._row.read_value())
        finally:
            self._is_of_batch = False

    @contextlib.contextmanager
    def _begun(self, make_columns: Callable[[], dict]) -> Generator[None]:
        with tf.device("/device:CPU:0"):
            self._row = variable_adapter.worker_variable(self._row_spec, self._name)
            reset = self._row.assign(self._columns(make_columns()))
        try:
            with tf.control_dependencies([reset]):
                yield
        finally:
            self._row = None

    def of_input(self, read: Callable) -> Any:
        """Returns what `read()` gives, a batch; counts how long that takes."""
        if self._row is None:
            return read()
        start, batch = step_times.timed_read(read)
        self._add({_INPUT_SECS: step_times.stamp_after(batch) - start})
        return batch

    def of_exchange(self, exchange: Callable, tensors: list) -> Any:
        """Returns `exchange(tensors)`: the workers do not wait for one another."""
        return exchange(tensors)

    def begin_step(self, tensors: Any, optimizers: list) -> None:
        """Notes that a step begins to compute.

        Args:
            tensors: What must be there: the batch, and weights that were fetched.
            optimizers: Those that the model has; maybe it does not use all of them.
        """
        if self._row is None:
            return
        self._computes_since = step_times.stamp_after(tensors)
        if not self._is_of_batch:
            self._note_updates(optimizers)
        self._add({_STEPS: 1.0})

    def _note_updates(self, optimizers: list) -> None:
        updating = map(keras_optimizers.inner_of, optimizers)
        self._updates_before = {id(each): (each, _num_updates(each)) for each in updating}

    def end_step(
        self, optimizer: keras.optimizers.Optimizer, gradients: list, variables: list
    ) -> None:
        """Notes that a step has the gradients of its first update, which are now sent."""
        before = self._updates_before
        optimizers = [before[id(optimizer)]] if id(optimizer) in before else []
        self._end(optimizers, gradients, variables, {})

    def end_batch(self, gradients: list, variables: list, num_examples: Any) -> None:
        """Notes that a synchronous step has its gradients, which are now sent."""
        optimizers = list(self._updates_before.values())
        self._end(optimizers, gradients, variables, {_EXAMPLES: num_examples})

    def _end(self, optimizers: list[tuple], gradients: list, variables: list, known: dict) -> None:
        since, self._computes_since = self._computes_since, None
        if self._row is None or since is None:
            return
        present = [gradient for gradient in gradients if gradient is not None]
        compute_secs = step_times.stamp_after(present) - since
        numbers = {_COMPUTE_SECS: compute_secs, **known}
        if optimizers:
            with tf.control_dependencies([since, compute_secs]):
                new = [_num_updates(optimizer) - count for optimizer, count in optimizers]
            stale = tf.cast(tf.reduce_max(tf.stack(new)), tf.float64)
            numbers[_STALENESS] = stale
            largest = tf.maximum(self._row.read_value()[_MAX_STALENESS], stale)
            numbers[_MAX_STALENESS] = largest - self._row.read_value()[_MAX_STALENESS]
        for ps, num_bytes in _bytes_of(gradients, variables).items():
            numbers[_FIRST_BYTES + ps] = num_bytes
        self._add(numbers)

    def _add(self, numbers: dict) -> None:
        with tf.device("/device:CPU:0"):
            self._row.assign_add(self._columns(numbers))

    def _columns(self, numbers: dict) -> tf.Tensor:
        columns = range(self._row_spec.shape[0])
        return tf.stack([tf.cast(numbers.get(each, 0.0), tf.float64) for each in columns])

    def _hand_over(self, row: Any) -> None:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        with tf.device(self._rows.device):
            self._rows.scatter_nd_add([[worker]], row[None])
            # This is one operation, since other workers do the same.
            self._largest.scatter_max(tf.IndexedSlices(row[None, _MAX_STALENESS], [worker]))


def _bytes_of(gradients: list, variables: list) -> dict[int, Any]:
    """Returns by parameter server how many bytes of gradients are sent there."""
    num_bytes: dict = collections.defaultdict(float)
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is None:
            continue
        parts = divided_values.parts_of(variable_adapter.value_of(variable))
        for part in parts:
            size = math.prod(part.shape) * part.dtype.size
            if isinstance(gradient, tf.IndexedSlices):  # Over all parts; taken as even.
                size = sum(
                    tf.cast(tf.size(each), tf.float64) * each.dtype.size / len(parts)
                    for each in (gradient.values, gradient.indices)
                )
            num_bytes[sharded_variables.server_of(part)] += size
    return num_bytes


def _num_updates(optimizer: Any) -> tf.Tensor:
    return tf.identity(optimizer.iterations.value.read_value())


class DataWaits:
    """How many batches each worker has begun to read in its call, and how many it has."""

    def __init__(self):
        self._name = variable_adapter.unique_name()
        self._counts: Any = None  # While a call is traced.

    def is_waiting(self, worker: Task) -> bool | None:
        """Returns whether a worker waits for a batch; None where it does not answer."""
        answers: list[bool] = []

        def ask() -> None:
            device = f"/job:worker/task:{worker.index}/device:CPU:0"
            with contextlib.suppress(tf.errors.OpError), tf.device(device):
                begun, ended = variable_adapter.worker_numbers(self._name, 2).numpy()
                answers.append(bool(begun > ended))

        thread = threading.Thread(target=ask, name="kerasdist_data_waits", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECS)
        return answers[0] if answers else None

    # What follows is traced by the chief and runs on a worker.

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Traces a call in which `of_input` reads."""
        with tf.device("/device:CPU:0"):
            self._counts = variable_adapter.worker_variable(
                tf.TensorSpec([2], tf.int64), self._name
            )
            reset = self._counts.assign(tf.zeros([2], tf.int64))
        try:
            with tf.control_dependencies([reset]):
                yield
        finally:
            self._counts = None

    def of_input(self, read: Callable) -> Any:
        """Returns what `read()` gives, a batch."""
        with tf.control_dependencies([self._note(_BEGUN)]):
            batch = read()
        with tf.control_dependencies(step_times.tensors_in(batch)):
            self._note(_ENDED)
        return batch

    def _note(self, counts: list[int]) -> tf.Operation:
        with tf.device("/device:CPU:0"):
            return self._counts.assign_add(tf.constant(counts, tf.int64))
