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
    keras_adapter,
    rehearsal,
    replica_step,
    update_callback,
    workers,
)
from kerasdist.training.data_source import without_optionals
from kerasdist.training.epoch_iterator import GlobalBatches
from kerasdist.training.lazy_logs import LazyLogs
from kerasdist.training.step_logs import StepLogs, graph_function, mean_over_examples


class StepFunction:
    """Runs one or more steps of a model over the replicas of its strategy.

    Args:
        model: A compiled model of one of our strategies.
        step: The model's bound train_step or test_step.
        returns_metrics: Whether `step` returns the model's metrics and nothing of its own; they are
            then read when somebody asks, and the step does not compute them.
        weighs_loss: See `ReplicaStep.weighs_loss`.
        callbacks: The update callbacks that are compiled into the step, in list order.
        is_rehearsed: Whether the first step is looked at before it runs; see `rehearsal`.
    """

    def __init__(
        self,
        model,
        step,
        *,
        returns_metrics: bool,
        weighs_loss: bool,
        callbacks=(),
        is_rehearsed: bool = False,
    ):
        self._model = model
        self._strategy = model.distribute_strategy
        self._step = replica_step.inlined(step, self._strategy)
        self._returns_metrics = returns_metrics
        self._weighs_loss = weighs_loss
        self._observers = update_callback.observers(callbacks)
        self._logs = StepLogs(model, returns_metrics=returns_metrics, callbacks=callbacks)
        self.callbacks = callbacks
        with tf.device("CPU:0"):
            self.num_examples = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._stop_request = tf.Variable(0.0, trainable=False)
            self._num_stop_requests = tf.Variable(0.0, trainable=False)
            self._digest = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._has_infinite = tf.Variable([False, False], trainable=False)
        self._is_first_call = True
        self._is_rehearsal_due = is_rehearsed and rehearsal.is_due(model)
        self._run_batch = self._one_step
        if not model.run_eagerly:
            self._run_batch = graph_function(self._one_step, reduce_retracing=True)
            self._run_step = graph_function(self._next_step)
            self._run_steps = graph_function(self._exact_steps)
            self._run_steps_while_data = graph_function(self._steps_while_data)
            self._run_own_steps = graph_function(self._own_steps)
        _warn_of_differences(model)

    def restart(self):
        """Counts examples from 0 again, and looks at the first batch again."""
        self.num_examples.assign(0)
        self._stop_request.assign(0)
        self._num_stop_requests.assign(0)
        self._has_infinite.assign([False, False])
        self._is_first_call = True

    def request_stop(self) -> None:
        """Tells the other workers, with the next gradients, that this one wants to stop."""
        self._stop_request.assign(1)

    @property
    def is_stop_requested(self) -> bool:
        """Whether a worker wanted to stop before the last step; the same on every worker."""
        return float(tf.convert_to_tensor(self._num_stop_requests)) > 0

    def __call__(self, data) -> LazyLogs:
        """Runs the steps that `data` asks for.

        Args:
            data: `GlobalBatches`, or (from `train_on_batch`) an iterator over batches.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        try:
            if isinstance(data, GlobalBatches):
                self._run(data)
            else:
                for batch in map(as_tensors, data):
                    self._rehearse(without_optionals(batch))
                    self._run_batch(batch)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except Exception as error:
            told = graph_errors.explained(error)
            if told is not error:
                raise told from None
            if self._is_first_call and self._strategy.num_replicas_in_sync > 1:
                told = graph_errors.of_parts(error, self._model, self._step)
            if told is not error:
                raise told from error
            raise
        if self._is_first_call:
            self._is_first_call = False
            self._check_first_batch()
        is_alone = workers.count(self._strategy) == 1
        return LazyLogs(
            self._logs.read,
            read_of_worker=None if is_alone else self._logs.read_of_worker,
            nesting=self._logs.nesting,
        )

    def _check_first_batch(self):
        if workers.count(self._strategy) > 1:
            data_checks.check_equal_batches(self._strategy, tf.convert_to_tensor(self._digest))
        data_checks.warn_of_infinite(self._has_infinite)

    def _run(self, data):
        if data.next_size is not None:
            self._take_own_steps(data)
            return
        num_taken = 0
        if self._can_rehearse() and isinstance(data.iterator, tf.data.Iterator):
            batch = next(data.iterator)
            self._rehearse(without_optionals(batch))
            again = iter(batches.dataset_of(batch, data.iterator.element_spec))
            num_taken = self._take(again, 1, data)
        if num_taken < data.num_steps:
            num_taken += self._take(data.iterator, data.num_steps - num_taken, data)
        data.answer(num_taken)

    def _take(self, iterator, num_steps: int, data) -> int:
        """Runs so many of the steps that `data` asks for; returns how many there were."""
        if self._model.run_eagerly or not isinstance(iterator, _TENSORFLOW_ITERATORS):
            return self._steps_in_python(iterator, num_steps)
        if data.num_steps == 1:
            self._run_step(iterator)
            return 1
        if data.is_exact:
            self._run_steps(iterator, tf.constant(num_steps))
            return num_steps
        return int(self._run_steps_while_data(iterator, tf.constant(num_steps)))

    def _can_rehearse(self) -> bool:
        # The step that makes the variables must draw their values as it would without us.
        return self._is_rehearsal_due and keras_adapter.is_built(self._model)

    def _rehearse(self, batch):
        if self._can_rehearse():
            self._is_rehearsal_due = False
            rehearsal.warn_of_differences(self._model, self._step, batch)

    def _take_own_steps(self, data):
        run = self._own_steps if self._model.run_eagerly else self._run_own_steps
        num_taken, next_size = run(data.iterator, tf.constant(data.num_steps), data.next_size)
        data.answer(int(num_taken), next_size)

    def _one_step(self, batch):
        """Runs a step with a global batch; returns the examples in it."""
        batch = without_optionals(batch)
        is_first = tf.equal(self.num_examples, 0)
        checks = self._look_at(batch, is_first=is_first)
        if workers.count(self._strategy) > 1:
            digest = tf.cond(is_first, lambda: data_checks.digest(batch), self._digest.read_value)
            checks = [*checks, self._digest.assign(digest)]
        shares = batches.shares_of(batch, self._strategy)
        return self._run_shares(batch, shares, checks=checks).num_examples

    def _one_own_step(self, batch, own_size, size, next_size):
        """Runs a step with a batch of this worker's own; returns the size of the next global one.

        Args:
            batch: The examples of this worker.
            own_size: int64 scalar, how many they are.
            size: int64 scalar, the examples of all workers.
            next_size: int64 scalar, the examples of this worker in the next step.
        """
        shares = batches.shares_of_own(batch, self._strategy, own_size, size)
        checks = self._look_at(batch, is_first=tf.equal(self.num_examples, 0))
        next_size = tf.cast(next_size, tf.float32)
        riders = ((_NEXT_SIZE, next_size),)
        result = self._run_shares(batch, shares, checks=checks, riders=riders)
        if _NEXT_SIZE not in result.sums:  # In `evaluate`.
            return tf.cast(workers.sum_in_graph(self._strategy, next_size), tf.int64)
        return tf.cast(result.sums[_NEXT_SIZE], tf.int64)

    def _look_at(self, batch, *, is_first) -> list:
        return data_checks.note_infinite(self._has_infinite, self._model, batch, is_first=is_first)

    def _run_shares(self, batch, shares, *, checks, riders=(), counter=None):
        with contextlib.ExitStack() as stack:
            for callback in self.callbacks:
                stack.enter_context(callback.tracing(self._model))
            stack.enter_context(self._logs.watched())
            result = replica_step.run(
                self._strategy,
                self._compiled(self._step_with_losses),
                shares,
                weighs_loss=self._weighs_loss,
                checks=checks,
                callbacks=self.callbacks,
                riders=(*self._riders(), *riders),
                states=batch_statistics.states_of_replicas(self._model),
            )
        with replica_step.after(batch, checks):
            counter = self.num_examples if counter is None else counter
            counter.assign_add(tf.cast(result.num_examples, tf.int64))
            if _STOP in result.sums:
                self._num_stop_requests.assign(tf.cast(result.sums[_STOP], tf.float32))
            self._observe([losses for _, losses in result.outputs], result.shares)
        if not self._returns_metrics:
            self._logs.keep([logs for logs, _ in result.outputs], result.shares)
        return result

    def _riders(self):
        if workers.count(self._strategy) == 1:
            return ()
        return ((_STOP, self._stop_request.read_value()),)

    def _observe(self, losses, shares):
        if not self._observers:
            return
        losses = mean_over_examples(losses, shares)
        losses = tf.nest.map_structure(
            lambda loss: workers.sum_in_graph(self._strategy, loss), losses
        )
        for observer in self._observers:
            observer.observe(losses)

    def _step_with_losses(self, data):
        """Runs the step on one replica; returns its own logs and its losses, or {} for unused."""
        logs = self._step(data)
        if self._returns_metrics:
            data_checks.check_metrics(self._model, logs)
            logs = {}
        return logs, replica_step.losses() if self._observers else {}

    def _compiled(self, function):
        is_on_one_device = self._strategy.num_replicas_in_sync == 1 and not (
            workers.are_asynchronous(self._strategy)
        )
        if not self._model.jit_compile or not is_on_one_device:
            return function
        return graph_function(function, jit_compile=True)

    # Functions that return something are compiled as Keras' are: TensorFlow leaves what is of no
    # use in those without outputs, and then writes sums in another order.

    def _next_step(self, iterator):
        return self._one_step(next(iterator))

    def _exact_steps(self, iterator, num_steps):
        def body(step):
            self._one_step(next(iterator))
            return step + 1

        return tf.while_loop(lambda step: step < num_steps, body, [0], parallel_iterations=1)

    def _steps_while_data(self, iterator, num_steps):
        def body(step, _):
            batch = iterator.get_next_as_optional()
            has_value = batch.has_value()
            tf.cond(
                has_value,
                lambda: tf.cast(self._one_step(batch.get_value()), tf.int32),
                lambda: 0,
            )
            return step + tf.cast(has_value, tf.int32), has_value

        num_taken, _ = tf.while_loop(
            lambda step, has_value: has_value & (step < num_steps),
            body,
            [0, True],
            parallel_iterations=1,
        )
        return num_taken

    def _own_steps(self, iterator, num_steps, size):
        def body(step, size):
            batch, own_size, next_size = next(iterator)
            return step + 1, self._one_own_step(batch, own_size, size, next_size)

        return tf.while_loop(
            lambda step, size: (step < num_steps) & (size > 0),
            body,
            [0, size],
            parallel_iterations=1,
        )

    def _steps_in_python(self, iterator, num_steps: int) -> int:
        num_taken = 0
        for batch in itertools.islice(iterator, num_steps):
            self._run_batch(batch)
            num_taken += 1
        return num_taken


def _warn_of_differences(model):
    strategy = model.distribute_strategy
    num_replicas = strategy.num_replicas_in_sync
    batch_statistics.warn_if_unsynchronized(model, num_replicas)
    if model.jit_compile and workers.are_asynchronous(strategy):
        warnings.warn(
            "`jit_compile=True` has no effect with parameter servers: XLA cannot compile a step "
            "whose variables are on another device. The model runs without XLA.",
            stacklevel=2,
        )
    if model.jit_compile and num_replicas > 1:
        warnings.warn(
            f"`jit_compile=True` has no effect on {num_replicas} replicas: XLA cannot compile a "
            "step whose gradients meet on several devices. The model runs without XLA.",
            stacklevel=2,
        )


def as_tensors(batch):
    """Returns a batch with tensors for its arrays and numbers."""
    return tf.nest.map_structure(
        lambda leaf: leaf if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf),
        batch,
    )


_STOP = "stop requests"
_NEXT_SIZE = "examples of the next batch"
_TENSORFLOW_ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
