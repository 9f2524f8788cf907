"""The function that `fit` and `evaluate` call for every step.

It takes global batches, runs the model's own train_step (or test_step) on every replica, and
returns logs that nobody has computed yet. `steps_per_execution` steps run inside one call.
"""

import contextlib
import itertools
import warnings

import tensorflow as tf

from kerasdist.training import (
    batch_statistics,
    batches,
    data_checks,
    graph_errors,
    lazy_logs,
    replica_step,
    update_callback,
)
from kerasdist.training.lazy_logs import LazyLogs


class StepFunction:
    """Runs one or more steps of a model over the replicas of its strategy.

    Args:
        model: A compiled model of one of our strategies.
        step: The model's bound train_step or test_step.
        returns_metrics: Whether `step` returns the model's metrics and nothing of its own; they are
            then read when somebody asks, and the step does not compute them.
        weighs_loss: See `ReplicaStep.weighs_loss`.
        callbacks: The update callbacks that are compiled into the step, in list order.
    """

    def __init__(self, model, step, *, returns_metrics: bool, weighs_loss: bool, callbacks=()):
        self._model = model
        self._strategy = model.distribute_strategy
        self._step = step
        self._returns_metrics = returns_metrics
        self._weighs_loss = weighs_loss
        self.callbacks = callbacks
        self._observers = update_callback.observers(callbacks)
        self._own_logs = None
        with tf.device("CPU:0"):
            self.num_examples = tf.Variable(0, dtype=tf.int64, trainable=False)
        num_replicas = self._strategy.num_replicas_in_sync
        self._compiles_step = bool(model.jit_compile) and num_replicas == 1
        if model.jit_compile and num_replicas > 1:
            warnings.warn(
                f"`jit_compile=True` has no effect on {num_replicas} replicas: XLA cannot compile "
                "a step whose gradients meet on several devices. The model runs without XLA.",
                stacklevel=2,
            )
        if model.run_eagerly:
            self._run_batch = self._one_step
            self._read_metrics = model.get_metrics_result
        else:
            self._run_batch = tf.function(self._one_step, autograph=False, reduce_retracing=True)
            self._run_step = tf.function(self._next_step, autograph=False)
            self._run_steps = tf.function(self._exact_steps, autograph=False)
            self._run_steps_while_data = tf.function(self._steps_while_data, autograph=False)
            self._read_metrics = tf.function(model.get_metrics_result, autograph=False)
        batch_statistics.warn_if_unsynchronized(model, num_replicas)

    def restart(self):
        """Counts examples from 0 again, and looks at the first batch again."""
        self.num_examples.assign(0)

    def __call__(self, data) -> LazyLogs:
        """Runs the steps that `data` asks for.

        Args:
            data: `GlobalBatches`, or (from `train_on_batch`) an iterator over batches.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        try:
            if isinstance(data, batches.GlobalBatches):
                self._run_or_restart(data)
            else:
                for batch in data:
                    self._run_batch(_as_tensors(batch))
        except tf.errors.InvalidArgumentError as error:
            raise graph_errors.explained(error) from None
        return LazyLogs(self._read_logs)

    def _run_or_restart(self, data):
        try:
            self._run(data)
        except (tf.errors.OutOfRangeError, StopIteration):
            if not data.restart():
                raise
            self._run(data)

    def _run(self, data):
        if self._model.run_eagerly or not isinstance(data.iterator, _TENSORFLOW_ITERATORS):
            data.num_taken = self._steps_in_python(data)
        elif data.num_steps == 1:
            self._run_step(data.iterator)
        elif data.is_exact:
            self._run_steps(data.iterator, tf.constant(data.num_steps))
        else:
            num_taken = int(self._run_steps_while_data(data.iterator, tf.constant(data.num_steps)))
            if num_taken == 0:
                raise StopIteration
            data.num_taken = num_taken

    def _one_step(self, batch):
        step = (
            tf.function(self._step, autograph=False, jit_compile=True)
            if self._compiles_step
            else self._step
        )
        checks = data_checks.assert_finite_labels(
            self._model, batch, is_first=tf.equal(self.num_examples, 0)
        )
        with contextlib.ExitStack() as stack:
            for callback in self.callbacks:
                stack.enter_context(callback.tracing(self._model))
            result = replica_step.run(
                self._strategy,
                self._with_losses(step),
                batches.shares_of(batch, self._strategy),
                weighs_loss=self._weighs_loss,
                checks=checks,
                callbacks=self.callbacks,
            )
        replicas = self._strategy.experimental_local_results(result.outputs)
        with replica_step.after(batch, checks):
            self.num_examples.assign_add(tf.cast(result.num_examples, tf.int64))
            for observer in self._observers:
                observer.observe(_weighted_means([losses for _, losses in replicas], result.shares))
        if not self._returns_metrics:
            self._keep(_weighted_means([logs for logs, _ in replicas], result.shares))

    def _with_losses(self, step):
        """Returns a function that gives the step's own logs (or {}) and the losses (or {})."""

        def replica_fn(data):
            logs = step(data)
            losses = replica_step.losses() if self._observers else {}
            if self._returns_metrics:
                data_checks.check_metrics(logs)
                logs = {}
            return logs, losses

        return replica_fn

    def _next_step(self, iterator):
        self._one_step(next(iterator))

    def _exact_steps(self, iterator, num_steps):
        def body(step):
            self._one_step(next(iterator))
            return step + 1

        tf.while_loop(lambda step: step < num_steps, body, [0], parallel_iterations=1)

    def _steps_while_data(self, iterator, num_steps):
        def body(step, _):
            batch = iterator.get_next_as_optional()
            has_value = batch.has_value()
            tf.cond(has_value, lambda: self._one_step(batch.get_value()), lambda: None)
            return step + tf.cast(has_value, tf.int32), has_value

        num_taken, _ = tf.while_loop(
            lambda step, has_value: has_value & (step < num_steps),
            body,
            [0, True],
            parallel_iterations=1,
        )
        return num_taken

    def _steps_in_python(self, data) -> int:
        num_taken = 0
        for batch in itertools.islice(data.iterator, data.num_steps):
            self._run_batch(batch)
            num_taken += 1
        if num_taken == 0:
            raise StopIteration
        return num_taken

    def _keep(self, means):
        """Keeps what the step returned, as the mean over the global batch, until it is read."""
        if self._own_logs is None:
            with tf.init_scope():
                self._own_logs = tf.nest.map_structure(
                    lambda value: tf.Variable(
                        tf.zeros([1 if size is None else size for size in value.shape]),
                        shape=value.shape,
                        trainable=False,
                    ),
                    means,
                )
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self._own_logs, means)

    def _read_logs(self) -> dict:
        logs = lazy_logs.as_numbers(self._current_logs())
        for callback in self.callbacks:
            logs = callback.change_logs(logs)
        return logs

    def _current_logs(self) -> dict:
        metrics = self._read_metrics()
        if self._returns_metrics or not isinstance(self._own_logs, dict):
            return metrics
        # A step that returns `metric.result()` returns it for its own replica. The metric knows the
        # global value; one that says 0 has not been updated, and the step's own value stands.
        return {
            name: metrics[name] if _is_nonzero(metrics.get(name)) else variable
            for name, variable in self._own_logs.items()
        }


def _is_nonzero(value) -> bool:
    return tf.is_tensor(value) and value.shape.rank == 0 and bool(value != 0)


def _weighted_means(replicas, shares):
    """Returns the logs of all replicas as their means over the examples."""
    return tf.nest.map_structure(lambda *values: _weighted_mean(values, shares), *replicas)


def _weighted_mean(values, shares):
    values = [tf.cast(value, tf.float32) for value in values]
    if len(values) == 1:
        return values[0]
    return tf.add_n(
        [
            tf.math.multiply_no_nan(value, tf.cast(share, tf.float32))
            for value, share in zip(values, shares, strict=True)
        ]
    )


def _as_tensors(batch):
    return tf.nest.map_structure(
        lambda leaf: leaf if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf),
        batch,
    )


_TENSORFLOW_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
