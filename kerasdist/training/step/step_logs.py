"""Keeps what a step reports, its own logs and the model's metrics, until somebody reads them."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers, traits
from kerasdist.training.hooks import graph_checks, lazy_logs, step_variables, update_callback
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.losses.metric_results import MetricResults


class StepLogs:
    """Keeps the logs of the last step on the device, and reads them as numbers.

    Args:
        model: The model whose metrics are read.
        returns_metrics: Whether the step returns the model's metrics and nothing of its own.
        callbacks: The update callbacks that change the logs, in list order.

    Attributes:
        nesting: The names in what was read, as `lazy_logs.nesting_of` gives them: Keras sorts the
            numbers of each dict by themselves. Empty before the first read.
    """

    def __init__(self, model: keras.Model, *, returns_metrics: bool, callbacks: tuple = ()):
        self._strategy = model.distribute_strategy
        self._runs_eagerly = model.run_eagerly
        self._callbacks = update_callback.of_step(callbacks)
        self.nesting: dict = {}
        self._own_logs = None
        self._results_in_logs: dict | None = None
        with tf.device("CPU:0"):
            self._share = tf.Variable(1.0, trainable=False)
        # One replica's results are those of all examples.
        is_remote = traits.has_remote_variables(self._strategy)
        is_divided = is_remote or self._strategy.num_replicas_in_sync > 1
        # Those on parameter servers that a step computes with are of all workers (`LocalCounts`).
        self._results = (
            MetricResults(model, warns=not is_remote)
            if is_divided and not returns_metrics
            else None
        )
        self._read_with(model.get_metrics_result)

    def watched(self) -> contextlib.AbstractContextManager:
        """Returns a context for the step, in which results of metrics are told from other logs."""
        return self._results.watched() if self._results else contextlib.nullcontext()

    def metrics_computed_with(self) -> list[keras.metrics.Metric]:
        """Returns the metrics with whose results the step computed that was last traced."""
        return self._results.computed_with if self._results else []

    def own_of(self, replicas: list, shares: list) -> Any:
        """Returns what the step returned, as this worker's part of a mean over the global batch.

        Args:
            replicas: Structures of tensors, one for each replica of this worker.
            shares: The share of each of them in the global batch.
        """
        if self._results:
            replicas = self._results.of_all_replicas(replicas)
        if isinstance(replicas[0], dict):
            self._tell_results(replicas[0])
        logs = mean_over_examples(replicas, shares)
        if peers.count(self._strategy) > 1:
            self._share.assign(tf.add_n([tf.cast(share, tf.float32) for share in shares]))
        return logs

    def keep(self, logs: Any) -> None:
        """Keeps what `own_of` has returned. Traced as a part of the step, or of the update."""
        if self._own_logs is None:
            with (
                tf.init_scope(),
                # In the scope of the trace, TensorFlow would trace the step once more.
                step_variables.being_made(self._strategy),
            ):
                self._own_logs = tf.nest.map_structure(_variable_like, logs)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self._own_logs, logs)

    def _tell_results(self, logs: Any):
        results = self._results.among(logs) if self._results else {}
        if results != self._results_in_logs:
            self._results_in_logs = results
            self._read_with(functools.partial(_read_all, list(results.values())))

    def _read_with(self, read: Callable[[], dict | list]):
        self._read_metrics = functools.partial(_values_of, read)
        self._read_metrics_of_replicas = functools.partial(
            _on_replicas, self._strategy, self._read_metrics
        )
        if not self._runs_eagerly:
            self._read_metrics = graph_function(self._read_metrics)
            self._read_metrics_of_replicas = graph_function(self._read_metrics_of_replicas)

    def read(self) -> dict:
        """Returns the logs of the last step as numbers; all workers must call it.

        Raises:
            ValueError: One of them has another shape on another worker.
        """
        if peers.count(self._strategy) > 1:
            self._check_workers()
        own_logs = self._map_own_logs(
            lambda variable: (
                peers.sum_over(self._strategy, variable.numpy())
                if peers.count(self._strategy) > 1
                else variable
            )
        )
        return self._as_numbers(self._read_metrics(), own_logs)

    def read_of_worker(self) -> dict:
        """Returns the logs of the last step as this worker knows them, for a look in between."""
        own_logs = self._map_own_logs(lambda variable: tf.math.divide_no_nan(variable, self._share))
        return self._as_numbers(self._read_metrics_of_replicas(), own_logs)

    def _check_workers(self):
        if self._own_logs is None:  # As Keras' own steps have none.
            return
        for path, variable in keras.tree.flatten_with_path(self._own_logs):
            if variable.shape.rank == 0:
                continue
            shape = tuple(variable.numpy().shape)
            rows = peers.gather(self._strategy, np.array(shape))
            if np.ptp(rows, axis=0).any():
                shapes = [tuple(map(int, row)) for row in rows]
                raise ValueError(describe_rows(path, shapes))

    def _map_own_logs(self, function: Callable):
        return self._own_logs and tf.nest.map_structure(function, self._own_logs)

    def _as_numbers(self, metrics: Any, own_logs: Any):
        if isinstance(own_logs, dict):
            results = dict(zip(self._results_in_logs or (), metrics, strict=True))
            leaves = keras.tree.flatten_with_path(own_logs)
            metrics = keras.tree.pack_sequence_as(
                own_logs, [results.get(path, leaf) for path, leaf in leaves]
            )
        self.nesting.update(lazy_logs.nesting_of(metrics))
        logs = lazy_logs.as_numbers(metrics)
        for callback in self._callbacks:
            logs = callback.change_logs(logs)
        return logs


def mean_over_examples(replicas: list, shares: list):
    """Returns a structure of scalars, one per replica, as its mean over the global batch.

    Args:
        replicas: The structure of each replica; a replica without examples may hold NaN.
        shares: The share of each replica in the global batch.

    Raises:
        ValueError: A log has another shape on another replica.
    """
    with tf.control_dependencies(_checks_of_shapes(replicas)):
        return tf.nest.map_structure(lambda *values: _mean(values, shares), *replicas)


def describe_rows(path: tuple, shapes: list) -> str:
    """Returns in words that a log has another shape where there is another number of examples.

    Args:
        path: Of the log.
        shapes: Those that it has on the replicas, or where it has the whole batch.
    """
    name, texts = name_of(path), dict.fromkeys(str(tf.TensorShape(shape)) for shape in shapes)
    return (
        f"The step returns '{name}' in the shape of a value for each example: "
        f"{' and '.join(texts)}. What a step returns is averaged over the examples of all "
        f"replicas. Return the mean of '{name}', `tf.reduce_mean(values)`."
    )


def name_of(path: tuple) -> str:
    """Returns how a log is called, by its path in what a step returns."""
    return str(path[-1]) if path else ""


def _checks_of_shapes(replicas: list) -> list:
    """Returns operations that check what the trace does not know; raises what it knows."""
    first, *others = [keras.tree.flatten_with_path(each) for each in replicas]
    checks = []
    for other in others:
        for (path, value), (_, another) in zip(first, other, strict=True):
            shapes = [_shape_of(value), _shape_of(another)]
            text = describe_rows(path, shapes)
            if not shapes[0].is_compatible_with(shapes[1]):
                raise ValueError(text)
            if not all(shape.is_fully_defined() for shape in shapes):
                message = graph_checks.message(ValueError, text)
                sizes = tf.shape(value), tf.shape(another)
                checks.append(tf.debugging.assert_equal(*sizes, message=message))
    return checks


def _shape_of(value: Any) -> tf.TensorShape:
    return tf.TensorShape(getattr(value, "shape", ()))


def _values_of(read: Callable):
    """Returns what is read, with values for the variables that a metric may give."""
    return keras.tree.map_structure(_value_of, read())


def _value_of(result: Any):
    variable = result.value if isinstance(result, keras.Variable) else result
    return variable.read_value() if isinstance(variable, tf.Variable) else variable


def _read_all(results: list) -> list:
    return [result.read() for result in results]


def _on_replicas(strategy: tf.distribute.Strategy, read: Callable):
    """Returns what the first replica of this worker reads."""
    return strategy.experimental_local_results(peers.on_replicas(strategy, read))[0]


def _mean(values: Sequence, shares: list):
    values = [tf.cast(value, tf.float32) for value in values]
    if len(shares) == 1 and isinstance(shares[0], float) and shares[0] == 1.0:
        return values[0]  # The only replica of all.
    shares = [tf.cast(share, tf.float32) for share in shares]
    return tf.add_n([tf.math.multiply_no_nan(*pair) for pair in zip(values, shares, strict=True)])


def _variable_like(value: Any):
    # The rank of what `tf.numpy_function` gives is unknown.
    sizes = value.shape.as_list() if value.shape.rank else []
    shape = [1 if size is None else size for size in sizes]
    return tf.Variable(tf.zeros(shape), shape=value.shape, trainable=False)
