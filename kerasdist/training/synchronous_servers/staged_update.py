"""Divides the update of synchronous workers: they stage gradients, and the chief does the rest.

A step on a worker comes as far as the sum before all else (see `gradient_aggregation`): what it has
is its part of the sum, and waits on the servers. The chief traces what follows, with the mean of
several batches: callbacks, clipping, the optimizer. It is traced once, and acts once for each
update.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.hooks import divided_values
from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.local_copies import LocalCopies
from kerasdist.training.parameter_servers.local_counts import LocalCounts
from kerasdist.training.replica import replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import OneDevice, Replica, StepOptions
from kerasdist.training.step import replica_run
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.synchronous_servers.contributions import Contributions

# Beside the sums of callbacks, whose names are others.
_NUM_EXAMPLES, _WEIGHT = "kerasdist num_examples", "kerasdist weight"
_COUNT, _LOSS, _LOG = "kerasdist count ", "kerasdist loss ", "kerasdist log "


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Half:
    """A step as far as the sum before all else.

    Attributes:
        gradients: Of the mean loss of a batch.
        variables: The variables.
        weight: What that loss was divided by.
        num_examples: Of the batch.
        sums: What callbacks want summed up, by their names.
        rest: What follows, called as rest(gradients, replica).
        options: How it is run.
    """

    gradients: list
    variables: list
    weight: Any
    num_examples: Any
    sums: dict
    rest: Callable
    options: StepOptions


class StagedUpdate:
    """An update that is traced in two halves.

    Args:
        strategy: Our ParameterServerStrategy.
        counts: What steps count.
        copies: What steps read in the place of small weights, if they do.
        model_step: Looks at what comes of the batches of an update; None in tests.

    Attributes:
        contributions: What is staged.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        counts: LocalCounts,
        copies: LocalCopies | None = None,
        *,
        model_step: ModelStep | None = None,
    ):
        self._strategy, self._counts, self._copies = strategy, counts, copies
        self._model_step = model_step
        self.contributions = Contributions()
        self._graph: Any = None  # While a step is traced.
        self._half: _Half | None = None  # Of the step that was traced last.
        self._shown: tuple = ({}, {})  # What it gives to look at: losses, and logs of its own.

    def delivery(self) -> LocalDelivery:
        """Returns what takes over the gradients of a step that is traced."""
        return _StagedDelivery(self)

    def stage(
        self, key: tf.Tensor, step: Callable[[tf.Variable], replica_run.GlobalStep]
    ) -> list[tf.Operation]:
        """Traces a step on a worker, and stages what comes of it.

        Args:
            key: See `Contributions.stage`.
            step: Called as step(num_examples) with a variable; traces it.

        Returns:
            The operations that have ended when all that comes of the step is staged.

        Raises:
            RuntimeError: The step makes no update.
            ValueError: It makes two; or its losses have several divisors.
        """
        self._graph, self._half = tf.compat.v1.get_default_graph(), None
        with self._counts.held() as counted:
            result = step(counted[-1])
        half = self._half
        if half is None:
            raise RuntimeError(
                "A train_step makes no update, and synchronous workers over parameter servers need "
                "one in each step. Call `optimizer.apply` with the gradients."
            )
        if self._model_step:
            self._shown = self._model_step.shown_of(result)
        losses, logs = map(tf.nest.flatten, self._shown)
        counts = [each.read_value() for each in counted]
        return self.contributions.stage(
            key,
            half.gradients,
            half.variables,
            weight=half.weight,
            sums={
                **half.sums,
                _NUM_EXAMPLES: half.num_examples,
                _WEIGHT: half.weight,
                **_named(_COUNT, counts),
                **_named(_LOSS, [_times(each, half.weight) for each in losses]),
                **_named(_LOG, [_times(each, half.num_examples) for each in logs]),
            },
        )

    def take_over(self, half: "_Half") -> None:
        """Notes what a step has come to before the sum; see `LocalDelivery.hand_over`."""
        if self._half is not None:
            raise ValueError(
                "A train_step makes two updates with `optimizer.apply`, and synchronous workers "
                "over parameter servers make one of each step: the gradients of the second would "
                "have to be those by weights that the first has changed for all. Give all "
                "variables to one `optimizer.apply`, as with a MultiOptimizer, or leave out "
                "`sync_replicas`."
            )
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                "A train_step calls `optimizer.apply` under a condition or in a loop, and "
                "synchronous workers over parameter servers make one update of each step. Call it "
                "outside of `tf.cond` and `tf.while_loop`, or leave out `sync_replicas`."
            )
        if self._copies:
            self._copies.put_back()
        self._half = half

    def make(self, keys: list[tf.Tensor]) -> None:
        """Traces the update of what these keys stand for, on the chief."""
        assert self._half is not None
        half, taken = self._half, self.contributions.take(keys)
        sums = {name: tf.cast(taken.sums[name], tf.float32) for name in half.sums}
        num_examples = tf.cast(taken.sums[_NUM_EXAMPLES], tf.int32)

        def make_replica(seat: replica_run.Seat) -> Replica:
            return OneDevice(
                replica_id=0,
                num_examples=num_examples,
                global_num_examples=num_examples,
                share=1.0,
                keras_state=seat.keras_state,
                options=half.options,
                delivery=_DeliveryOfChief(),
                is_first=True,
                draws_alone=True,
                sums=sums,
            )

        def make_update(replica: Replica, _: int) -> Any:
            half.rest(taken.gradients, replica)
            return replica_run.is_discarded(replica)

        results = replica_run.on_each(self._strategy, make_replica, make_update)
        is_discarded, *_ = self._strategy.experimental_local_results(results)
        self._leave_behind(taken.sums, is_discarded)

    def _leave_behind(self, sums: dict[str, tf.Tensor], is_discarded: Any) -> None:
        """Traces what an update leaves beside the weights, or not where it is discarded."""
        counted = _numbered(_COUNT, sums)
        if is_discarded is None:
            self._counts.add(counted)
        else:
            tf.cond(is_discarded, lambda: None, lambda: self._counts.add(counted))
        if self._model_step:
            totals = sums[_WEIGHT], sums[_NUM_EXAMPLES]
            means = [
                [tf.cast(tf.math.divide_no_nan(each, total), tf.float32) for each in found]
                for found, total in zip(
                    (_numbered(_LOSS, sums), _numbered(_LOG, sums)), totals, strict=True
                )
            ]
            losses, logs = map(tf.nest.pack_sequence_as, self._shown, means)
            self._model_step.show(losses, logs, is_discarded=is_discarded)


class _StagedDelivery(LocalDelivery):
    """Stages gradients; what follows the sum is not traced on the worker."""

    needs_divisors = True

    def __init__(self, update: StagedUpdate):
        self._update = update

    def hand_over(self, rest: Callable, gradients: list, variables: list, replica: Any) -> None:
        half = _Half(
            gradients=gradients,
            variables=variables,
            weight=_weight_of(replica),
            num_examples=replica.num_examples,
            sums=dict(replica.extra_sums),
            rest=rest,
            options=replica.options,
        )
        self._update.take_over(half)


class _DeliveryOfChief(RemoteDelivery):
    """Updates each variable where its gradient is already, on its server."""

    def _send(self, gradients: list, variables: list) -> list:
        sent = []
        for gradient, variable in zip(gradients, variables, strict=True):
            weight = variable_adapter.value_of(variable)
            if gradient is not None and divided_values.is_sharded(weight):
                self._send_pieces(gradient, weight)
            elif gradient is not None:
                parts = [gradient]
                if isinstance(gradient, tf.IndexedSlices):
                    parts = [gradient.values, gradient.indices]
                self._arrived.setdefault(weight.device, []).extend(parts)
            sent.append(gradient)
        return sent


def _named(prefix: str, numbers: list) -> dict[str, Any]:
    return {f"{prefix}{index}": number for index, number in enumerate(numbers)}


def _numbered(prefix: str, sums: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """Returns what `_named` was given, in its order."""
    names = [name for name in sums if name.startswith(prefix)]
    return [sums[f"{prefix}{index}"] for index in range(len(names))]


def _times(number: Any, weight: Any) -> tf.Tensor:
    return tf.cast(number, tf.float64) * tf.cast(weight, tf.float64)


def _weight_of(replica: Replica) -> Any:
    """Returns what the loss of a batch was divided by.

    Raises:
        ValueError: There are several divisors, or there is none.
    """
    divisors = replicas.divisors()
    if not divisors:  # A loss of the program's own counts as a mean over its examples.
        return replica.num_examples
    first, *others = divisors
    if others or first.total is None:
        names = " and ".join(f"by {each.name}" for each in divisors)
        raise ValueError(
            "The mean over the batches of several workers is that of one device where all losses "
            f"of a step are divided by the same. Received: losses divided {names}. Use reduction="
            "'sum_over_batch_size' for all of them, and mask or weigh all or none."
        )
    return first.total
