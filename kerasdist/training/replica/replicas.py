"""The kinds of replica: what each knows of the global batch, and how it computes its part of it.

A global batch is split over the replicas, and the shares need not be equal: the last batch of an
epoch may be odd, or smaller than the number of replicas. Whatever must then be weighed by examples
(losses, gradients, means) asks the replica of its thread instead of assuming 1 / num_replicas.

    replica = current()
    if replica is not None:            # None outside a step of our strategies
        loss = replica.weigh(loss)     # The global loss is the sum of these over the replicas.

There are four kinds, and each answers in its own way:

    OneDevice       It is the only one. Or it stands for that, with all examples.
    WholeCopy       It has all examples, as each of the others has. The gradient is the first one's.
    Part            It has its part of the examples, and what it computes counts by its share.
    OfCustomLoop    It has what a loop of the program's own gives it, and counts as it is.
"""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import collectives
from kerasdist.support import memory
from kerasdist.training.replica import delivery
from kerasdist.training.replica.first_answers import FirstAnswers
from kerasdist.training.replica.notes import (
    Divisor,
    LossNotes,
    StateNotes,
    TrialNotes,
    UpdateNotes,
    WholeGradients,
)


class CannotMeetError(RuntimeError):
    """Replicas were to meet inside of what XLA compiles, where they cannot."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """How a step is run, the same on every replica.

    Attributes:
        weighs_loss: Whether the step can weigh the loss; see `Replica.weighs_loss`.
        replica_id: As which replica it draws random numbers; None for that which it is.
        callbacks: The update callbacks of the `fit` that runs.
        is_unobserved: Whether none of them looks at this step; see `StepCallback.looks_within`.
        may_discard: Whether a callback may discard the step, which then sets no state.
        make_delivery: Returns how the aggregated gradients reach the variables.
        times: `StepTimes` that measure the messages between replicas, or None.
        take_own: Returns a `Snapshot` of the attributes of the model, which is put back where a
            replica goes on after another one has run, and where a replica begins to do once more
            what the first one has done: to trace the step, or to run it with the whole batch. None
            for a model that has nothing of the user's own.
    """

    weighs_loss: bool = False
    replica_id: Any = None
    callbacks: tuple = ()
    is_unobserved: bool = False
    may_discard: bool = False
    make_delivery: Callable = delivery.LocalDelivery
    times: Any = None
    take_own: Callable | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica in the step that is being traced; see the module for its kinds.

    What it answers here is what holds where it has the examples of the whole batch.

    Attributes:
        replica_id: Position of the replica among all replicas, from 0; 0 on each that has the
            whole batch, so that it draws the random numbers of one device. An integer scalar where
            the graph computes several batches of an update.
        num_examples: int32 scalar, the examples on this replica that count. Where it is 0, the
            replica computes with one that does not (see `batches`).
        global_num_examples: int32 scalar, the examples on all replicas.
        share: float32 scalar num_examples / global_num_examples, or a Python float where the
            shapes are static; the shares of all replicas add up to 1, also where each of them has
            the whole batch.
        may_be_empty: Whether this replica can be without examples.
        weighs_loss: Whether the step multiplies the loss by `share` before the backward pass,
            which saves one multiplication for every gradient after it.
        keras_state: What Keras keeps for the thread of the program.
        options: The `StepOptions` of all replicas.
        data: The batch of this replica.
        dependence: The `Dependence` that follows it; None in a trial.
        graph: The graph of the step itself; in another one, of a condition or a loop, replicas
            cannot meet.
        delivery: How the aggregated gradients reach the variables.
        exchange: Called as exchange(sum_up, tensors) for the messages between replicas.
        extra_sums: float32 scalars that are summed over the replicas together with the gradients,
            by name.
        losses: The `LossNotes` of this replica.
        whole_gradients: Those of the global batch that the tape has given; in a loop of the user's
            own, what it has all-reduced.
        updates: The `UpdateNotes` of this replica.
        sums: What came of `extra_sums`.
        of_all: What this replica has shown the others, by the ids of tensors; see `all_examples`.
        states: The `StateNotes` of this replica.
        trial: The `TrialNotes` of a trial; None in a step that counts.
        is_first: Whether no replica of all comes before this one, also where each has the
            whole batch; not known in a loop of the program's own.
        seeds: The `FirstAnswers` of the generators that all replicas share.
        draws_alone: Whether the replicas of this worker are all that draw.
        calls: The `FirstAnswers` of what the first replica of this worker calls for all.
        compiled_graph: That of the function which XLA is to compile, while it is traced; None
            elsewhere.
    """

    replica_id: int
    num_examples: Any
    global_num_examples: Any
    share: Any
    keras_state: dict
    may_be_empty: bool = False
    weighs_loss: bool = False
    options: StepOptions = dataclasses.field(default_factory=StepOptions)
    data: Any = None
    dependence: Any = None
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    delivery: Any = dataclasses.field(default_factory=delivery.LocalDelivery)
    exchange: Callable = operator.call
    extra_sums: dict = dataclasses.field(default_factory=dict)
    losses: LossNotes = dataclasses.field(default_factory=LossNotes)
    whole_gradients: WholeGradients = dataclasses.field(default_factory=WholeGradients)
    updates: UpdateNotes = dataclasses.field(default_factory=UpdateNotes)
    sums: dict = dataclasses.field(default_factory=dict)
    of_all: dict = dataclasses.field(default_factory=dict)
    states: StateNotes = dataclasses.field(default_factory=StateNotes)
    trial: TrialNotes | None = None
    is_first: bool = False
    seeds: FirstAnswers = dataclasses.field(default_factory=FirstAnswers.of_the_first)
    draws_alone: bool = False
    calls: FirstAnswers = dataclasses.field(default_factory=FirstAnswers.of_the_first)
    compiled_graph: Any = None

    def check_can_meet(self) -> None:
        """Checks that replicas can meet in what is traced.

        Raises:
            CannotMeetError: XLA is to compile it.
        """
        if self.compiled_graph is not None:
            raise CannotMeetError("the replicas meet before they have their gradients")

    def outside_of_compiled(self) -> contextlib.AbstractContextManager:
        """Returns a context of the step's own graph, around the function that XLA compiles.

        Raises:
            CannotMeetError: This is a graph inside of that function, as of a condition.
        """
        if self.compiled_graph is None:
            return contextlib.nullcontext()
        if tf.compat.v1.get_default_graph() is not self.compiled_graph:
            self.check_can_meet()
        return self.graph.as_default()

    def is_in_step_graph(self) -> bool:
        """Whether what runs now is traced in the graph of the step itself: replicas can meet."""
        return tf.compat.v1.get_default_graph() is self.graph

    def apart(self) -> "Replica":
        """Returns this replica in a graph that is not that of the step: replicas do not meet."""
        return dataclasses.replace(self, graph=None)

    def weigh(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns this replica's part of a loss whose gradient one device takes.

        That of a loss with a number for each example is the gradient of their sum. Beside such
        numbers, a scalar of another output counts once for each.
        """
        if loss.shape.rank == 0:
            return loss * tf.cast(self.share, loss.dtype)
        # A replica without examples has one that does not count.
        return loss * tf.cast(tf.minimum(self.num_examples, 1), loss.dtype)

    def unweigh(self, value: Any) -> Any:
        """Returns what adds up to the same over the replicas, once it is weighed by their shares.

        Args:
            value: Of this replica: its addend, as it stands, of what one device has.
        """
        return value

    def sum(self, tensors: list) -> list:
        """Returns tensors summed over the replicas that have examples; differentiable.

        Args:
            tensors: Of one dtype; they travel in one message.
        """
        return tensors

    def needs_divisors(self) -> bool:
        """Whether somebody asks what losses are divided by."""
        return bool(self.options.callbacks) or self.delivery.needs_divisors

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a number of this replica's examples, added up over all examples."""
        return value

    def mean_of_batch(self, loss: tf.Tensor, divisor: Divisor) -> tf.Tensor:
        """Returns a loss that was divided by something of this replica, as it counts by its share.

        Args:
            loss: Of this replica's examples.
            divisor: What the loss of the global batch is divided by.
        """
        return loss

    def sum_of_numbers(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns a loss that has a number for each example, of which one device takes the sum."""
        return loss

    def weight_of_mean(self) -> Any:
        """Returns by what a number for a whole batch counts in a mean over batches, or None."""
        return None

    def adds_up(self) -> bool:
        """Whether what the replicas add to a variable that they share is to be added up."""
        return self.trial is not None

    def counts(self) -> Any:
        """Returns whether what this replica adds to such a variable counts: a bool, or scalar."""
        return self.is_first

    def draws_for_all(self, is_one_number: Callable[[], bool]) -> bool:
        """Whether random numbers are drawn once, by the first replica, for all of them.

        In a trial all draw alike, some for fewer examples than the first.

        Args:
            is_one_number: Whether it is a single one that is drawn.
        """
        return self.trial is None

    def note_draw(self, drawn: Any) -> None:
        """Notes what is the same on all replicas, as it is drawn once for them."""


class OneDevice(Replica):
    """A replica that sends nothing: one device, or what stands for it."""


class Peer(Replica):
    """A replica whose gradient meets those of others."""

    def sum(self, tensors: list) -> list:
        self.check_can_meet()
        flat = tf.concat([_flat(tensor) for tensor in tensors], axis=0)
        summed = collectives.differentiable_sum(self.of_examples(flat), self._weigh_by())
        if self.dependence:
            self.dependence.end_at([summed])
        parts = tf.split(summed, [_size(each) for each in tensors])
        return [
            part if tensor.shape.rank == 1 else tf.reshape(part, tf.shape(tensor))
            for part, tensor in zip(parts, tensors, strict=True)
        ]

    def sum_gradient(self, gradient: tf.Tensor) -> tf.Tensor:
        """Returns the gradient by this replica's addend of a sum; zeros where it has no examples.

        Args:
            gradient: That of the sum, as this replica knows it.
        """
        add_up, weigh = collectives.differentiable_sum, self._weigh_by()
        return self.of_examples(weigh(add_up, gradient) if weigh else add_up(gradient))

    def of_examples(self, values: Any) -> Any:
        """Returns what this replica computes of its examples: zeros where it has none."""
        if not self.may_be_empty:
            return values
        return tf.where(self.num_examples > 0, values, tf.zeros_like(values))

    def _weigh_by(self) -> Callable | None:
        return None if self.weighs_loss else self._weigh_gradient

    def _weigh_gradient(self, add_up: Callable, gradient: tf.Tensor) -> tf.Tensor:
        """Adds up gradients of losses that are weighed later, with the gradient of the weights."""
        share = tf.cast(self.share, gradient.dtype)
        return tf.math.divide_no_nan(add_up(gradient * share), share)

    def weigh_gradient(self, values: tf.Tensor, factor: int) -> tf.Tensor:
        """Returns a gradient of this replica as it counts in the sum over all.

        Args:
            values: Of a loss that is not weighed.
            factor: What this loss was divided by.
        """
        # What a replica without examples computes counts for nothing, NaN included.
        multiply = tf.math.multiply_no_nan if self.may_be_empty else tf.multiply
        return multiply(values, tf.cast(self.share * factor, values.dtype))

    def anew(self) -> "Peer":
        """Returns this replica for gradients that nobody has weighed, and that travel alone."""
        return dataclasses.replace(self, weighs_loss=False, extra_sums={})

    def adds_up(self) -> bool:
        return True


class WholeCopy(Peer):
    """A replica with all examples, as each of the others has; the first one's gradient counts."""


class Divided(Peer):
    """A replica with some of the examples, which others do not have."""

    def unweigh(self, value: Any) -> Any:
        return tf.math.divide_no_nan(value, tf.cast(self.share, value.dtype))

    def total(self, value: tf.Tensor) -> tf.Tensor:
        return self.sum([value])[0]

    def counts(self) -> Any:
        return self.num_examples > 0

    def draws_for_all(self, is_one_number: Callable[[], bool]) -> bool:
        return self.trial is None and self.draws_alone and is_one_number()

    def note_draw(self, drawn: Any) -> None:
        if self.dependence is not None:
            self.dependence.end_at(drawn)

    def sum_of_parts(self, part: tf.Tensor) -> tf.Tensor:
        """Returns the sum of every replica's part, with the gradient that `share` makes whole."""
        total = tf.stop_gradient(self.total(part))
        part = self.unweigh(part)
        whole = part + tf.stop_gradient(total - part)
        if self.dependence:
            self.dependence.end_at([whole])
        return whole

    def note_sum(self, summed: Any) -> None:
        """Notes what an `all_reduce` of the program's own has given."""
        if self.dependence:
            self.dependence.end_at(summed)


class Part(Divided):
    """A replica with its part of the global batch, of which the losses count by its share."""

    def needs_divisors(self) -> bool:
        return True

    def mean_of_batch(self, loss: tf.Tensor, divisor: Divisor) -> tf.Tensor:
        if divisor.total is None:
            return self.unweigh(loss)
        if divisor.weights is None:
            return loss
        fraction = tf.math.divide_no_nan(divisor.local, divisor.total)
        return loss * tf.cast(self.unweigh(fraction), loss.dtype)

    def sum_of_numbers(self, loss: tf.Tensor) -> tf.Tensor:
        if self.weighs_loss:
            return loss
        # Its gradient is weighed later, by the share of this replica.
        addend = self.unweigh(self.weigh(loss))
        return addend + tf.stop_gradient(loss - addend)

    def weight_of_mean(self) -> Any:
        return self.share

    def as_one_device(self) -> OneDevice:
        """Returns what stands for one device where this replica has been shown all examples."""
        known: dict[str, Any] = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(self)
        }
        known.update(replica_id=0, share=1.0, may_be_empty=False)
        return OneDevice(**known | {"num_examples": self.global_num_examples})


class OfCustomLoop(Divided):
    """A replica in a loop of the program's own, whose loss is divided by what all examples have."""

    @classmethod
    def made(cls, **arguments: Any) -> "OfCustomLoop":
        """Returns one that counts as it is, with what else a `Replica` has."""
        return cls(num_examples=1, global_num_examples=1, share=1.0, weighs_loss=True, **arguments)

    def note_sum(self, summed: Any) -> None:
        super().note_sum(summed)
        for each in tf.nest.flatten(summed):
            self.whole_gradients.add(each, each)


# Those of our own steps, which weigh examples by the shares of replicas.
OF_STEP = (OneDevice, WholeCopy, Part)


def current() -> Replica | None:
    """Returns the replica that this thread traces, or None outside the steps of our strategies."""
    return memory.THREAD.replica


def divided() -> Divided | None:
    """Returns that of this thread where it has some of the examples alone, else None."""
    replica = current()
    return replica if isinstance(replica, Divided) else None


def sees_one_replica() -> bool:
    """Whether what this thread runs has all examples, and is to see no other replica.

    A loss that is divided by the number of replicas, or that gathers their examples, is then what
    it is on one device.
    """
    return isinstance(current(), OneDevice | WholeCopy)


def global_num_examples() -> Any:
    """Returns the examples of the global batch: int32 scalar; 0 outside a step."""
    replica = current()
    return replica.global_num_examples if replica else 0


def losses() -> dict:
    """Returns the losses that the step of this thread has tracked so far."""
    replica = current()
    return dict(replica.losses.means) if replica else {}


def divisors() -> list[Divisor]:
    """Returns the different divisors of the losses that the step of this thread has computed."""
    replica = current()
    found = replica.losses.divisors if replica else []
    return list({(each.name, id(each.weights)): each for each in found}.values())


def num_updates() -> Any:
    """Returns the updates so far of the optimizer that updates now: int scalar, traced."""
    replica = current()
    assert replica is not None
    return tf.convert_to_tensor(replica.updates.optimizers[-1].iterations)


def is_first_update() -> bool:
    """Whether no other update comes before this one in the step of this thread."""
    replica = current()
    return replica is not None and len(replica.updates.optimizers) == 1


def is_local_update() -> bool:
    """Whether this thread holds aggregated gradients and updates its own copy of the variables."""
    replica = current()
    return replica is not None and replica.updates.are_local


def discard_if(*reasons: tf.Tensor) -> None:
    """Lets the step of this thread leave nothing behind where one of these bool scalars is true."""
    replica = current()
    if replica is not None:
        replica.states.discards.extend(reasons)


def take_discards() -> list:
    """Returns what `discard_if` was told in the step of this thread, and forgets it."""
    replica = current()
    if replica is None:
        return []
    taken = list(replica.states.discards)
    replica.states.discards.clear()
    return taken


@contextlib.contextmanager
def entered(replica: Replica | None) -> Generator[None]:
    """Makes `replica` the `current()` one of this thread."""
    outer, memory.THREAD.replica = current(), replica
    try:
        yield
    finally:
        memory.THREAD.replica = outer


def apart() -> contextlib.AbstractContextManager:
    """Returns a context of a graph that is not that of the step: replicas do not meet there."""
    replica = current()
    return entered(replica and replica.apart())


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def _size(tensor: tf.Tensor) -> Any:
    # A number that is known costs no operation, here and in the gradient.
    return tf.size(tensor) if tensor.shape.num_elements() is None else tensor.shape.num_elements()
