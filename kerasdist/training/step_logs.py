"""What a step reports: its own logs and the model's metrics, kept until somebody reads them."""

import functools

import tensorflow as tf

from kerasdist.training import lazy_logs


class StepLogs:
    """Keeps the logs of the last step on the device, and reads them as numbers.

    Args:
        model: The model whose metrics are read.
        returns_metrics: Whether the step returns the model's metrics and nothing of its own.
        callbacks: The update callbacks that change the logs, in list order.
    """

    def __init__(self, model, *, returns_metrics: bool, callbacks=()):
        self._returns_metrics = returns_metrics
        self._callbacks = callbacks
        self._own_logs = None
        self._read_metrics = model.get_metrics_result
        if not model.run_eagerly:
            self._read_metrics = graph_function(model.get_metrics_result)

    def keep(self, logs) -> None:
        """Keeps what the step returned: a structure of tensors of the global batch."""
        if self._own_logs is None:
            with tf.init_scope():
                self._own_logs = tf.nest.map_structure(_variable_like, logs)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self._own_logs, logs)

    def read(self) -> dict:
        """Returns the logs of the last step as numbers."""
        logs = lazy_logs.as_numbers(self._current())
        for callback in self._callbacks:
            logs = callback.change_logs(logs)
        return logs

    def _current(self) -> dict:
        metrics = self._read_metrics()
        if self._returns_metrics or not isinstance(self._own_logs, dict):
            return metrics
        # A step that returns `metric.result()` returns it for its own replica. The metric knows the
        # global value; one that says 0 has not been updated, and the step's own value stands.
        return {
            name: metrics[name] if _is_nonzero(metrics.get(name)) else variable
            for name, variable in self._own_logs.items()
        }


def graph_function(method, **kwargs):
    """Returns a tf.function of `method`, without AutoGraph.

    TensorFlow counts traces by the code of a function, and would warn of retracing when the methods
    of a few models have been traced once each; a partial has no code of its own.
    """
    return tf.function(functools.partial(method), autograph=False, **kwargs)


def mean_over_examples(replicas, shares):
    """Returns a structure of scalars, one per replica, as its mean over the global batch.

    Args:
        replicas: The structure of each replica; a replica without examples may hold NaN.
        shares: The share of each replica in the global batch.
    """
    return tf.nest.map_structure(lambda *values: _mean(values, shares), *replicas)


def _mean(values, shares):
    values = [tf.cast(value, tf.float32) for value in values]
    if len(values) == 1:
        return values[0]
    shares = [tf.cast(share, tf.float32) for share in shares]
    return tf.add_n([tf.math.multiply_no_nan(*pair) for pair in zip(values, shares, strict=True)])


def _variable_like(value):
    shape = [1 if size is None else size for size in value.shape]
    return tf.Variable(tf.zeros(shape), shape=value.shape, trainable=False)


def _is_nonzero(value) -> bool:
    return tf.is_tensor(value) and value.shape.rank == 0 and bool(value != 0)
