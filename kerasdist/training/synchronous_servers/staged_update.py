"""Divides the update of synchronous workers: they stage gradients, and the chief does the rest.

A step on a worker comes as far as the sum before all else (see `gradient_aggregation`): what it has
is its part of the sum, and waits on the servers. The chief traces what follows, with the mean of
several batches: callbacks, clipping, the optimizer. It is traced once, and acts once for each
update. So does what a step assigns, counts and reports besides.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.context import deployment
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.hooks import divided_values
from kerasdist.training.hooks.graph_function import rare_cond
from kerasdist.training.parameter_servers import local_copies, sharded_variables
from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.local_copies import LocalCopies
from kerasdist.training.parameter_servers.local_counts import LocalCounts
from kerasdist.training.replica import graph_facts, replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.notes import Divisor, LossNotes
from kerasdist.training.replica.replicas import OneDevice, Replica
from kerasdist.training.step import replica_run
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.synchronous_servers import batch_numbers, placement
from kerasdist.training.synchronous_servers.contributions import Contributions, How, Taken, Value
from kerasdist.training.synchronous_servers.held_states import HeldStates
from kerasdist.training.synchronous_servers.inseparable import InseparableError
from kerasdist.training.synchronous_servers.server_calls import Parcel


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Half:
    """A step as far as the sum before all else.

    Attributes:
        gradients: Of the mean loss of a batch.
        variables: The variables.
        weight: What that loss was divided by.
        sums: What callbacks want summed up, by their names.
        rest: What follows, called as rest(gradients, replica).
        replica: The one that has computed the batch.
        num_reads: How often each variable was read until then.
    """

    gradients: list
    variables: list
    weight: Any
    sums: dict
    rest: Callable
    replica: Replica
    num_reads: list[int]


class StagedUpdate:
    """An update that is traced in two halves.

    Args:
        model: A model on parameter servers.
        counts: What steps count.
        copies: What steps read in the place of small weights, if they do.
        model_step: Looks at what comes of the batches of an update; None in tests.
        home: See `Contributions`.

    Attributes:
        contributions: What is staged.
    """

    def __init__(
        self,
        model: keras.Model,
        counts: LocalCounts,
        copies: LocalCopies | None = None,
        *,
        model_step: ModelStep | None = None,
        home: str | None = None,
    ):
        self._strategy, self._counts, self._copies = model.distribute_strategy, counts, copies
        self.states = HeldStates(model, copies)
        self._model_step = model_step
        self.contributions = Contributions(home)
        self._graph: Any = None  # While a step is traced.
        self._half: _Half | None = None  # Of the step that was traced last, as those below.
        self._per_example: list[bool] = []  # Which of its counts are so.
        self._shown: tuple = ({}, {})  # What it gives to look at: losses, and logs of its own.
        self._num_values: dict[str, int] = {}  # How many values there are of each kind.

    def delivery(self) -> LocalDelivery:
        """Returns what takes over the gradients of a step that is traced."""
        number = deployment.remote_workers(self._strategy).num_to_aggregate
        return _StagedDelivery(self, number or 1)

    def stage(
        self,
        key: tf.Tensor,
        step: Callable[[tf.Variable], replica_run.GlobalStep],
        *,
        fetch: Callable[[list], list] = local_copies.fetched,
    ) -> tuple[list, Parcel]:
        """Traces a step on a worker, and stages what comes of it.

        Args:
            key: See `Contributions.stage`.
            step: Called as step(num_examples) with a variable; traces it.
            fetch: See `HeldStates.held`.

        Returns:
            See `Contributions.stage`.

        Raises:
            InseparableError: The step makes no update, or two, or one under a condition, or reads
                what it has made of the weights; or its losses have several divisors.
            TraceAgainError: It assigns to variables of which nobody knew.
        """
        self._graph, self._half = tf.compat.v1.get_default_graph(), None
        with self.states.held(fetch) as states, self._counts.held() as counted:
            result = step(counted[-1])
            half = self._checked_half()
        groups = {
            "states": states,
            "gradients": _gradients_of(half),
            "sums": [Value(tf.cast(each, tf.float64), How.SUM) for each in half.sums.values()],
            "counts": self._count(counted, half.replica),
            **self._look(result, half.replica),
        }
        self._num_values = {name: len(values) for name, values in groups.items()}
        return self.contributions.stage(
            key,
            list(itertools.chain(*groups.values())),
            weight=half.weight,
            num_examples=half.replica.num_examples,
        )

    def _checked_half(self) -> _Half:
        half = self._half
        if half is None:
            raise InseparableError(
                "its train_step calls no `optimizer.apply`",
                "Where it does, once in each step, all workers compute.",
            )
        if _num_reads(half.variables) != half.num_reads:
            raise InseparableError(
                "its train_step uses weights after `optimizer.apply`, as an average of them does",
                "Where a callback does so, as MovingAverage, all workers compute.",
            )
        return half

    def _count(self, counted: list[tf.Variable], replica: Replica) -> list[Value]:
        variables = [*self._counts.variables, None]  # The last one is that of the examples.
        counts = [
            batch_numbers.count(variable, local.read_value(), replica)
            for variable, local in zip(variables, counted, strict=True)
        ]
        self._per_example = [each.is_per_example for each in counts]
        return [each.value for each in counts]

    def _look(self, result: replica_run.GlobalStep, replica: Replica) -> dict[str, list[Value]]:
        if self._model_step:
            self._shown = self._model_step.shown_of(result)
        losses, logs = (
            [batch_numbers.number(each, replica) for each in tf.nest.flatten(shown)]
            for shown in self._shown
        )
        return {"losses": losses, "logs": logs}

    def note_times(self, gradients: list, variables: list, num_examples: Any) -> None:
        """Notes on a worker that the gradients of a batch are there."""
        if self._model_step:
            self._model_step.times.end_batch(gradients, variables, num_examples)

    def take_over(self, half: "_Half") -> None:
        """Notes what a step has come to before the sum; see `LocalDelivery.hand_over`."""
        if self._half is not None:
            raise InseparableError(
                "its train_step calls `optimizer.apply` twice, and the second gradients are those "
                "by weights that the first update has changed",
                "Where one `optimizer.apply` gets all variables, as with a MultiOptimizer, all "
                "workers compute.",
            )
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise InseparableError(
                "its train_step calls `optimizer.apply` under a condition or in a loop",
                "Where it calls it outside of `tf.cond` and `tf.while_loop`, all workers compute.",
            )
        if self._copies:
            self._copies.put_back()
        self._half = dataclasses.replace(half, num_reads=_num_reads(half.variables))

    def make(self, keys: list[tf.Tensor]) -> None:
        """Traces the update of what these keys stand for, on the chief."""
        assert self._half is not None
        half, taken = self._half, self.contributions.take(keys)
        values = iter(taken.values)
        found = {
            name: list(itertools.islice(values, number))
            for name, number in self._num_values.items()
        }
        before = self.states.assign(found["states"])
        gradients, pieces = _joined(found["gradients"], half)
        sums = [tf.cast(each, tf.float32) for each in found["sums"]]
        num_examples = tf.cast(taken.num_examples, tf.int32)

        def make_replica(seat: replica_run.Seat) -> Replica:
            return OneDevice(
                replica_id=0,
                num_examples=num_examples,
                global_num_examples=num_examples,
                share=1.0,
                keras_state=seat.keras_state,
                options=half.replica.options,
                delivery=_DeliveryOfChief(pieces),
                is_first=True,
                draws_alone=True,
                sums=dict(zip(half.sums, sums, strict=True)),
                losses=LossNotes(divisors=_divisors_of(half, taken)),
            )

        def make_update(replica: Replica, _: int) -> Any:
            with placement.beside_inputs():
                half.rest(gradients, replica)
            return replica_run.is_discarded(replica)

        results = replica_run.on_each(self._strategy, make_replica, make_update)
        is_discarded, *_ = self._strategy.experimental_local_results(results)
        if is_discarded is not None:
            rare_cond(is_discarded, lambda: _put_back(before))
        self._leave_behind(found, taken, is_discarded)

    def _leave_behind(self, found: dict[str, list], taken: Taken, is_discarded: Any) -> None:
        """Traces what an update leaves beside the weights, or not where it is discarded."""
        counted = [
            each * taken.num_examples if is_per_example else each
            for each, is_per_example in zip(found["counts"], self._per_example, strict=True)
        ]
        if is_discarded is None:
            self._counts.add(counted)
        else:
            tf.cond(is_discarded, lambda: None, lambda: self._counts.add(counted))
        if self._model_step:
            means = [
                [tf.cast(each, tf.float32) for each in found[name]] for name in ("losses", "logs")
            ]
            losses, logs = map(tf.nest.pack_sequence_as, self._shown, means)
            self._model_step.show(losses, logs, is_discarded=is_discarded)


def _divisors_of(half: _Half, taken: Taken) -> list[Divisor]:
    """Returns what the losses of an update are divided by, as callbacks ask for it."""
    first, *_ = [*half.replica.losses.divisors, None]
    return [] if first is None else [Divisor(name=first.name, total=taken.weight)]


def _put_back(before: list[tuple]) -> None:
    for state, value in before:
        state.assign(value)


def _gradients_of(half: _Half) -> list[Value]:
    """Returns the gradients on their servers, those of a divided weight each with its part."""
    values = []
    is_divided = bool(half.replica.losses.divisions)  # See `loss_scale`.
    factor = half.replica.delivery.num_batches if is_divided else 1
    for gradient, variable in zip(half.gradients, half.variables, strict=True):
        if gradient is None:
            continue
        # Those of Keras' float8 layers are the largest inputs that they have seen.
        how = How.LARGEST if gradient_aggregation.is_overwritten(variable) else How.MEAN
        weight = variable_adapter.value_of(variable)
        pieces = [gradient]
        if divided_values.is_sharded(weight):
            pieces = sharded_variables.divided_argument(gradient, weight)
        for piece, part in zip(pieces, divided_values.parts_of(weight), strict=True):
            values.append(Value(piece, how, beside=part, factor=factor))
    return values


def _joined(found: list, half: _Half) -> tuple[list, list[tuple]]:
    """Returns the gradients of several batches.

    Returns:
        One for each variable, or None; and pairs of one that is joined of pieces and these pieces.
    """
    values, gradients, joined = iter(found), [], []
    for gradient, variable in zip(half.gradients, half.variables, strict=True):
        weight = variable_adapter.value_of(variable)
        if gradient is None:
            gradients.append(None)
            continue
        pieces = list(itertools.islice(values, len(divided_values.parts_of(weight))))
        gradients.append(sharded_variables.joined(pieces, weight))
        if divided_values.is_sharded(weight):
            joined.append((gradients[-1], pieces))
    return gradients, joined


def _num_reads(variables: list) -> list[int]:
    parts = [divided_values.parts_of(variable_adapter.value_of(each)) for each in variables]
    return [len(graph_facts.uses_of(part)) for group in parts for part in group]


class _StagedDelivery(LocalDelivery):
    """Stages gradients; what follows the sum is not traced on the worker."""

    needs_divisors = is_apart = True

    def __init__(self, update: StagedUpdate, num_batches: int):
        self._update, self.num_batches = update, num_batches

    def hand_over(self, rest: Callable, gradients: list, variables: list, replica: Any) -> None:
        half = _Half(
            gradients=gradients,
            variables=variables,
            weight=weight_of(replica),
            sums=dict(replica.extra_sums),
            rest=rest,
            replica=replica,
            num_reads=[],
        )
        self._update.take_over(half)
        self._update.note_times(gradients, variables, replica.num_examples)


class _DeliveryOfChief(RemoteDelivery):
    """Updates each variable where its gradient is already, on its server.

    Args:
        joined: Pairs of a gradient and its pieces, on the servers of the parts of its variable.
    """

    def __init__(self, joined: list[tuple]):
        super().__init__()
        self._joined = joined

    is_apart = True

    def _send(self, gradients: list, variables: list) -> list:
        for gradient, variable in zip(gradients, variables, strict=True):
            weight = variable_adapter.value_of(variable)
            if gradient is None:
                continue
            if divided_values.is_sharded(weight):
                self._send_parts(gradient, weight)
            else:
                self._note_arrival(weight.device, gradient)
        return gradients

    def _send_parts(self, gradient: Any, weight: Any) -> None:
        pieces = next((pieces for whole, pieces in self._joined if whole is gradient), None)
        if pieces is None:  # Something has changed it.
            self._send_pieces(gradient, weight)
            return
        for part, piece in zip(weight.variables, pieces, strict=True):
            self._pieces[part.ref()] = piece
            self._note_arrival(part.device, piece)

    def _note_arrival(self, device: str, gradient: Any) -> None:
        is_sliced = isinstance(gradient, tf.IndexedSlices)
        tensors = [gradient.values, gradient.indices] if is_sliced else [gradient]
        self._arrived.setdefault(device, []).extend(tensors)


def weight_of(replica: Replica) -> Any:
    """Returns what the loss of a batch was divided by.

    Raises:
        InseparableError: There are several divisors, or a sum that is divided by nothing.
    """
    divisors = replicas.divisors()
    if not divisors:  # A loss of the program's own counts as a mean over its examples.
        return replica.num_examples
    first, *others = divisors
    if others or first.total is None:
        names = " and ".join(f"by {each.name}" for each in divisors)
        raise InseparableError(
            f"its losses are divided {names}",
            "Where all of them have reduction='sum_over_batch_size', and all or none are masked or "
            "weighted, all workers compute.",
        )
    return first.total
