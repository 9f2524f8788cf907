"""One step of a model over its replicas: what every train and test function runs.

It runs the model's own train_step (or test_step) on every replica with its share of a batch, and
keeps what came of it until somebody reads the logs.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts
from kerasdist.status import task_status
from kerasdist.training.context import peers, traits
from kerasdist.training.data import batches, data_checks
from kerasdist.training.data.first_axes import FirstAxes
from kerasdist.training.gradients import custom_apply
from kerasdist.training.hooks import update_callback
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.losses import batch_statistics, loss_scale, whole_metrics
from kerasdist.training.losses.loss_sums import LossSums
from kerasdist.training.replica import custom_attributes, replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import StepOptions
from kerasdist.training.step import replica_run
from kerasdist.training.step.compiled_part import CompiledPart
from kerasdist.training.step.step_logs import StepLogs, mean_over_examples
from kerasdist.training.step.step_times import StepTimes


class TraceAgainError(Exception):
    """A trace has made variables that it ought to have known of before: trace again, they exist.

    Plain Keras traces such a step twice, too. What a train_step reads before it calls the model
    (`trainable_variables`, `losses`, `built`) is that of a model without weights in the first trace
    only, and on the first replica only. So is the scale of an optimizer that is not built.
    """


class ModelStep:
    """A step of a model, traced over the replicas of its strategy.

    Args:
        model: A compiled model of one of our strategies.
        step: The model's bound train_step or test_step.
        returns_metrics: Whether `step` returns the model's metrics and nothing of its own; they are
            then read when somebody asks, and the step does not compute them.
        weighs_loss: See `Replica.weighs_loss`.
        trains: Whether it is a train_step.
        callbacks: The update callbacks that are compiled into the step, in list order.
        before_first: Is called right before the first step, by `begin`.
        make_delivery: See `StepOptions`.
        make_times: Called with `is_on`; returns what measures the steps.
        shows_apart: Whether what comes of a step is not looked at in its graph, but in another one,
            which calls `show`.

    Attributes:
        step: As it runs on a replica.
        first_axes: The `FirstAxes` of the first batch.
        logs: What the last step reports.
        num_examples: int64 variable, the examples of all steps since it was set to 0.
        losses: See `train_function`.
        times: Where the time of the steps goes; see `train_function`.
        is_unobserved: Whether no callback looks at a step that is traced now; see
            `StepCallback.looks_within`.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable,
        *,
        returns_metrics: bool,
        weighs_loss: bool,
        trains: bool = True,
        callbacks: tuple = (),
        before_first: Callable[[], None] | None = None,
        make_delivery: Callable = LocalDelivery,
        make_times: Callable = StepTimes,
        shows_apart: bool = False,
    ):
        self._model = model
        self._strategy = model.distribute_strategy
        self.step = replica_run.inlined(step, self._strategy)
        self._returns_metrics, self._weighs_loss = returns_metrics, weighs_loss
        self._before_first = before_first
        self._make_delivery = make_delivery
        self._observers = update_callback.overriding("observe", callbacks)
        of_step = update_callback.of_step(callbacks)
        self.losses = LossSums(self._strategy)
        is_remote = traits.has_remote_variables(self._strategy)
        adds = any(callback.measures_losses for callback in of_step)
        self._adds_losses, self._shows_apart = adds and (shows_apart or not is_remote), shows_apart
        self.times = make_times(is_on=_measures_time(of_step, trains=trains))
        self._may_discard = any(callback.guards_update for callback in of_step)
        self.callbacks = callbacks
        self.is_unobserved, self._num_traces_again = False, 0
        self.logs = StepLogs(model, returns_metrics=returns_metrics, callbacks=callbacks)
        with self._strategy.scope() if is_remote else tf.device("CPU:0"):
            self.num_examples = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._has_infinite = tf.Variable([False, False], trainable=False)
        self._is_original = custom_parts.is_original_step(step)
        self.first_axes = FirstAxes(is_of_original_step=self._is_original)
        self._has_to_warn = trains  # A test_step computes no batch statistics.
        is_custom = not self._is_original or custom_parts.has_custom_parts(model)
        self._take_own = functools.partial(custom_attributes.Snapshot, model) if is_custom else None
        self._compiled_part = CompiledPart(model, step, callbacks)

    def restart(self) -> None:
        """Counts examples from 0 again, and looks at the first batch again."""
        self.num_examples.assign(0)
        self._has_infinite.assign([False, False])
        self.first_axes.restart()

    def begin(self) -> None:
        """Begins a call of one or more steps."""
        if self._before_first is not None:
            self._before_first()
            self._before_first = None

    def look_at(self, batch: Any, *, is_first: Any, num_parts: int = 1) -> list:
        """Looks for what is wrong with the first batch; returns checks for `run`.

        Args:
            batch: The batch.
            is_first: bool scalar, whether it is the first one.
            num_parts: How many shares are made of it.
        """
        noted = data_checks.note_infinite(self._has_infinite, self._model, batch, is_first=is_first)
        return [*noted, *self.first_axes.note(batch, num_parts, is_first=is_first)]

    def see(self, batch: Any) -> str | None:
        """Looks at a first batch that is there before the step is traced, which may fail.

        Returns:
            What `FirstAxes.describe` does; None for a step of the user's own.
        """
        if not self._is_original:
            return None
        self.first_axes.see(batch, self._strategy.num_replicas_in_sync)
        return self.first_axes.describe()

    def warn_of_batch(self, *, is_divided: bool) -> None:
        """Warns of what `look_at` has found in a batch, and of what it means to divide it."""
        data_checks.warn_of_infinite(self._has_infinite)
        if not is_divided:
            return
        self.first_axes.warn()
        if self._has_to_warn:
            self._has_to_warn = False
            num_replicas = self._strategy.num_replicas_in_sync
            batch_statistics.warn_if_unsynchronized(self._model, num_replicas)

    def run(
        self,
        batch: Any,
        shares: batches.Shares,
        *,
        checks: Sequence,
        extra_sums: Sequence = (),
        counter: Any = None,
        replica_id: Any = None,
    ) -> replica_run.GlobalStep:
        """Traces a step.

        Args:
            batch: The batch of which the shares are.
            shares: `batches.Shares`.
            checks: Tensors that must be there before anything of the step runs.
            extra_sums: See `replica_run.run`.
            counter: Variable that counts the examples, in place of `num_examples`.
            replica_id: See `StepOptions`.

        Raises:
            TraceAgainError: The trace has made weights of the model, states that a replica without
                examples has to put back, or an optimizer of which it has used the scale before;
                raised twice in a row at most. Or XLA was to compile what it cannot; raised once.
        """
        states = self._states()
        with self._traced_again_if_made(states, shares), contextlib.ExitStack() as stack:
            for callback in update_callback.of_step(self.callbacks):
                stack.enter_context(callback.tracing(self._model))
            stack.enter_context(whole_metrics.updated_with_all(self._model))
            stack.enter_context(custom_apply.routed(self._model))
            stack.enter_context(self.logs.watched())
            part = self._compiled_part.tracing(is_unobserved=self.is_unobserved)
            stack.enter_context(part)
            result = replica_run.run(
                self._strategy,
                self._compiled(self._step_with_losses),
                shares,
                options=self._options(replica_id),
                checks=checks,
                extra_sums=extra_sums,
                states=states,
            )
        whole_metrics.note_others(self._model, are_whole=shares.are_whole)
        with replica_run.after(batch, checks):
            counter = self.num_examples if counter is None else counter
            counter.assign_add(tf.cast(result.num_examples, tf.int64))
            if not self._shows_apart:
                self._observe(result)
        if not self._returns_metrics and not self._shows_apart:
            self.logs.keep(self._logs_of(result))
        return result

    def shown_of(self, result: replica_run.GlobalStep) -> tuple[dict, Any]:
        """Returns what comes of a step on this worker: its losses, and its own logs.

        These are part of the global ones; each is empty where nobody looks.
        """
        return self._losses_of(result), {} if self._returns_metrics else self._logs_of(result)

    def show(self, losses: dict, logs: Any, *, is_discarded: Any) -> None:
        """Traces what is looked at once for an update, where that is apart from the steps.

        Args:
            losses: As `shown_of` returns, of the global batch.
            logs: As there.
            is_discarded: Bool scalar, whether the losses are of no interest; None if they are.
        """
        if self._observes_losses():
            _unless(is_discarded, lambda: self._show_losses(losses, losses))
        if not self._returns_metrics:
            self.logs.keep(logs)

    @contextlib.contextmanager
    def _traced_again_if_made(
        self, states: replica_run.States, shares: batches.Shares
    ) -> Generator[None]:
        may_be_empty = shares.may_be_empty and self._strategy.num_replicas_in_sync > 1
        if tf.executing_eagerly():
            put_back = self._made_states_put_back(states, shares)
            with put_back if may_be_empty else contextlib.nullcontext():
                yield
            return
        num_weights = len(self._model.weights)
        error = None
        with loss_scale.scales_watched() as late_scales:
            try:
                yield
            except Exception as raised:  # noqa: BLE001
                # The second replica finds weights where the first had none, and they part ways.
                error = raised
        has_made = len(self._model.weights) > num_weights or (
            may_be_empty and len(self._states()) > len(states)
        )
        # The first trace may have ended at the weights, before it came to the optimizer.
        is_again = (has_made and self._num_traces_again == 0) or (
            bool(late_scales) and self._num_traces_again < 2
        )
        self._num_traces_again = self._num_traces_again + 1 if is_again else 0
        if error is not None and self._compiled_part.gives_up(error):
            raise TraceAgainError from error
        if late_scales:  # A `tf.function` would keep its first trace.
            self.step = replica_run.as_python(self.step)
        if is_again:
            raise TraceAgainError from error
        if error is not None:
            raise error
        self._compiled_part.tell()

    @contextlib.contextmanager
    def _made_states_put_back(
        self, states: replica_run.States, shares: batches.Shares
    ) -> Generator[None]:
        """Lets replicas without examples leave states alone that an eager step makes as it runs."""
        values: dict[int, tuple] = {}

        def create(next_creator: Callable, **kwargs: Any):
            variable = next_creator(**kwargs)
            for copy in self._strategy.experimental_local_results(variable):
                values[id(copy)] = copy, copy.numpy()
            return variable

        with tf.variable_creator_scope(create):
            yield
        found = self._states()
        if len(found) == len(states):
            return
        for count, copies in zip(shares.counts, found.on_replicas(self._strategy), strict=True):
            made = [copy for copy in copies.of_examples if id(copy) in values and count == 0]
            for copy in made:
                copy.assign(values[id(copy)][1])

    def _options(self, replica_id: Any) -> StepOptions:
        return StepOptions(
            weighs_loss=self._weighs_loss,
            replica_id=replica_id,
            callbacks=self.callbacks,
            is_unobserved=self.is_unobserved,
            may_discard=self._may_discard,
            make_delivery=self._make_delivery,
            times=self.times,
            take_own=self._take_own,
        )

    def _states(self) -> replica_run.States:
        """Returns what steps set so far."""
        return replica_run.States(
            of_examples=batch_statistics.states_of_examples(self._model),
            others=batch_statistics.other_states(self._model),
        )

    def _logs_of(self, result: replica_run.GlobalStep) -> Any:
        return self.logs.own_of([logs for logs, _ in result.outputs], result.shares)

    def _losses_of(self, result: replica_run.GlobalStep) -> dict[str, Any]:
        if not self._observes_losses():
            return {}
        return mean_over_examples([losses for _, losses in result.outputs], result.shares)

    def _observe(self, result: replica_run.GlobalStep):
        if not self._observes_losses():
            return
        losses = part = self._losses_of(result)
        if self._observers and part:
            summed = peers.sum_in_graph(self._strategy, tf.stack(list(part.values())))
            losses = dict(zip(part, tf.unstack(summed), strict=True))
        _unless(result.is_discarded, lambda: self._show_losses(part, losses))

    def _show_losses(self, part: dict, losses: dict) -> None:
        if self._adds_losses:
            self.losses.add(part)
        for observer in self._observers:
            observer.observe(losses)

    def _step_with_losses(self, data: Any):
        """Runs the step on one replica; returns its own logs and its losses, or {} for unused."""
        logs = self._compiled_part.run(self.step, data)
        if self._returns_metrics:
            data_checks.check_metrics(self._model, logs)
            logs = {}
        return logs, replicas.losses() if self._observes_losses() else {}

    def _observes_losses(self) -> bool:
        return self._adds_losses or bool(self._observers)

    def _compiled(self, function: Callable):
        if not traits.is_compiled_by_xla(self._model):
            return function

        def traced(data: Any):
            outputs = function(data)
            return outputs, replicas.take_discards()

        compiled = graph_function(traced, jit_compile=True)

        def run(data: Any):
            # What belongs to its graph cannot be used outside but as its output.
            outputs, discards = compiled(data)
            replicas.discard_if(*discards)
            return outputs

        return run


def _unless(condition: Any, act: Callable[[], None]) -> None:
    """Traces `act()`, which does nothing where a bool scalar is true; None is never true."""
    if condition is None:
        act()
    else:
        tf.cond(condition, lambda: None, act)


def _measures_time(callbacks: list[update_callback.StepCallback], *, trains: bool) -> bool:
    """Whether a step is to measure where its time goes."""
    is_told = trains and task_status.of_process().measures_time
    return is_told or any(callback.measures_time for callback in callbacks)
