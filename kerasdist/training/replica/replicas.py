"""What one replica knows about the global batch while its step is traced.

A global batch is split over the replicas, and the shares need not be equal: the last batch of an
epoch may be odd, or smaller than the number of replicas. Whatever must then be weighed by examples
(losses, gradients, means) asks `current()` for its share instead of assuming 1 / num_replicas.

    replica = current()
    if replica is not None:            # None outside a step of our strategies
        loss = loss * replica.share    # the global loss is the sum of these over the replicas
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import collectives
from kerasdist.support import memory
from kerasdist.training.replica import delivery
from kerasdist.training.replica.first_answers import FirstAnswers


class WholeGradients:
    """Gradients of the global batch, and what of them is of one replica."""

    def __init__(self):
        self._pairs: dict = {}

    def __len__(self):
        return len(self._pairs)

    def __contains__(self, gradient):
        return id(gradient) in self._pairs

    def add(self, gradient, own) -> None:
        """Adds one of the global batch, with that of this replica."""
        self._pairs[id(gradient)] = gradient, own  # While it is here, no other has its id.

    def has_rows_of(self, gradient) -> bool:
        """Whether a gradient is slices of the rows of one of them, in their order."""
        indices = getattr(gradient, "indices", None)
        return indices is not None and any(
            getattr(whole, "indices", None) is indices for whole, _ in self._pairs.values()
        )

    def tensors(self) -> list:
        """Returns those of the global batch."""
        return [whole for whole, _ in self._pairs.values()]

    def own(self, gradient):
        """Returns what this replica has added to a gradient, which is all of any other one."""
        return self._pairs[id(gradient)][1] if gradient in self else gradient


@dataclasses.dataclass(kw_only=True, slots=True)
class Division:
    """A scaled loss that was divided by the number of replicas.

    Attributes:
        loss: As the program has it.
        optimizer: The one that has scaled it.
        is_undone: Whether the gradients that the tape has given are multiplied again.
    """

    loss: Any
    optimizer: Any
    is_undone: bool = False


@dataclasses.dataclass(kw_only=True, slots=True)
class LossNotes:
    """What the losses of one replica are, as they are computed.

    Attributes:
        means: The mean losses by the names of their metrics, as they are tracked.
        added: What layers have added with `add_loss`, by the layer's id.
        divisors: What each loss was divided by, in the order in which they were computed; on one
            device only where there are callbacks.
        divisions: The losses that were divided by the number of replicas.
    """

    means: dict = dataclasses.field(default_factory=dict)
    added: dict = dataclasses.field(default_factory=dict)
    divisors: list = dataclasses.field(default_factory=list)
    divisions: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True, slots=True)
class UpdateNotes:
    """The updates of one replica, as they are traced.

    Attributes:
        graphs: Those in which an optimizer was called.
        optimizers: Those whose updates the callbacks took part in.
    """

    graphs: list = dataclasses.field(default_factory=list)
    optimizers: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True, slots=True)
class StateNotes:
    """What a step does with the states that are no weights.

    Attributes:
        discards: Bool scalars, any of which says that the step is to leave nothing behind: no count
            in metrics, no moving statistics. They are the same on all replicas.
        resets: The values, by the ids of their variables, that metrics have been reset to.
    """

    discards: list = dataclasses.field(default_factory=list)
    resets: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True, slots=True)
class TrialNotes:
    """What a step would do that is rehearsed.

    Attributes:
        updates: Paths of the variables and their gradients of each update, which is not made.
        own_losses: The user's compiled losses, each with labels and predictions.
    """

    updates: list = dataclasses.field(default_factory=list)
    own_losses: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """How a step is run, the same on every replica.

    Attributes:
        weighs_loss: Whether the step can weigh the loss; see `Replica.weighs_loss`.
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
    callbacks: tuple = ()
    is_unobserved: bool = False
    may_discard: bool = False
    make_delivery: Callable = delivery.LocalDelivery
    times: Any = None
    take_own: Callable | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """The share of one replica in the global batch of the step that is being traced.

    Attributes:
        replica_id: Position of the replica among all replicas, from 0; 0 on each that has the
            whole batch, so that it draws the random numbers of one device.
        num_examples: int32 scalar, the examples on this replica that count. Where it is 0, the
            replica computes with one that does not (see `batches`).
        global_num_examples: int32 scalar, the examples on all replicas.
        share: float32 scalar num_examples / global_num_examples, or a Python float where the
            shapes are static; the shares of all replicas add up to 1, also where each of them has
            the whole batch.
        has_whole_batch: Whether the examples on this replica are those of the whole batch.
        is_alone: Whether it sends no gradients: one device, or what stands for it.
        may_be_empty: Whether this replica can be without examples.
        weighs_loss: Whether the step multiplies the loss by `share` before the backward pass,
            which saves one multiplication for every gradient after it.
        keras_state: What Keras keeps for the thread of the program.
        options: The `StepOptions` of all replicas.
        data: The batch of this replica.
        dependence: The `Dependence` that follows it; None in a rehearsal.
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
        trial: The `TrialNotes` of a rehearsal; None in a step that counts.
        is_first: Whether no replica of all comes before this one, also where each has the
            whole batch.
        seeds: The `FirstAnswers` of the generators that all replicas share.
        draws_alone: Whether the replicas of this worker are all that draw.
        calls: The `FirstAnswers` of what the first replica of this worker calls for all.
        is_of_loop: Whether a loop of the user's own runs it, which divides its loss by what the
            global batch has: the sum over the replicas is all that there is to do.
    """

    replica_id: int
    num_examples: Any
    global_num_examples: Any
    share: Any
    has_whole_batch: bool
    is_alone: bool
    may_be_empty: bool
    weighs_loss: bool
    keras_state: dict
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
    is_of_loop: bool = False

    @classmethod
    def of_loop(cls, **arguments) -> "Replica":
        """Returns that of a replica in a loop of the user's own: each counts as it is."""
        return cls(
            num_examples=1,
            global_num_examples=1,
            share=1.0,
            has_whole_batch=False,
            is_alone=False,
            may_be_empty=False,
            weighs_loss=True,
            is_of_loop=True,
            **arguments,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Divisor:
    """What the loss of a global batch is divided by.

    Attributes:
        name: What it is, in words.
        total: Scalar over all replicas; None for a sum, which is divided by nothing.
        weights: The mask or weights of this replica that `total` is the sum of, or None.
    """

    name: str
    total: Any
    weights: Any = None


def current() -> Replica | None:
    """Returns the step that this thread traces, or None outside the steps of our strategies."""
    return memory.THREAD.replica


def with_shares() -> Replica | None:
    """Returns the step of this thread; None also in a loop of the user's own, which weighs."""
    step = current()
    return None if step is None or step.is_of_loop else step


def sees_one_replica() -> bool:
    """Whether what this thread runs has all examples, and is to see no other replica.

    A loss that is divided by the number of replicas, or that gathers their examples, is then what
    it is on one device.
    """
    step = current()
    return step is not None and step.has_whole_batch


def global_num_examples():
    """Returns the examples of the global batch: int32 scalar; 0 outside a step."""
    step = current()
    return step.global_num_examples if step else 0


def losses() -> dict:
    """Returns the losses that the step of this thread has tracked so far."""
    step = current()
    return dict(step.losses.means) if step else {}


def divisors() -> list[Divisor]:
    """Returns the different divisors of the losses that the step of this thread has computed."""
    step = current()
    found = step.losses.divisors if step else []
    return list({(each.name, id(each.weights)): each for each in found}.values())


def num_updates():
    """Returns the updates so far of the optimizer that updates now: int scalar, traced."""
    step = current()
    assert step is not None
    return tf.convert_to_tensor(step.updates.optimizers[-1].iterations)


def is_first_update() -> bool:
    """Whether no other update comes before this one in the step of this thread."""
    step = current()
    return step is not None and len(step.updates.optimizers) == 1


def discard_if(*reasons) -> None:
    """Lets the step of this thread leave nothing behind where one of these bool scalars is true."""
    step = current()
    if step is not None:
        step.states.discards.extend(reasons)


def take_discards() -> list:
    """Returns what `discard_if` was told in the step of this thread, and forgets it."""
    step = current()
    if step is None:
        return []
    taken = list(step.states.discards)
    step.states.discards.clear()
    return taken


def sum_over_replicas(tensors: list) -> list:
    """Returns tensors summed over the replicas that have examples; differentiable.

    Args:
        tensors: Of one dtype; they travel in one message.
    """
    step = current()
    flat = tf.concat([_flat(tensor) for tensor in tensors], axis=0)
    if step and step.may_be_empty:
        flat = tf.where(step.num_examples > 0, flat, tf.zeros_like(flat))
    summed = collectives.differentiable_sum(flat, _weigh_by(step))
    if step and step.dependence:
        step.dependence.end_at([summed])
    parts = tf.split(summed, [_size(each) for each in tensors])
    return [
        part if tensor.shape.rank == 1 else tf.reshape(part, tf.shape(tensor))
        for part, tensor in zip(parts, tensors, strict=True)
    ]


def sum_gradient_over_replicas(gradient):
    """Returns the gradient by this replica's addend of a sum; zeros where it has no examples.

    Args:
        gradient: That of the sum, as this replica knows it.
    """
    step, add_up = current(), collectives.differentiable_sum
    weigh = _weigh_by(step)
    gradient = weigh(add_up, gradient) if weigh else add_up(gradient)
    if step and step.may_be_empty:
        gradient = tf.where(step.num_examples > 0, gradient, tf.zeros_like(gradient))
    return gradient


def _weigh_by(step):
    return None if step is None or step.weighs_loss else functools.partial(_weigh, step)


def _weigh(step, add_up, gradient):
    """Adds up gradients of losses that are weighed later, with the gradient of the weights."""
    share = tf.cast(step.share, gradient.dtype)
    return tf.math.divide_no_nan(add_up(gradient * share), share)


def _flat(tensor):
    return tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])


def _size(tensor):
    # A number that is known costs no operation, here and in the gradient.
    return tf.size(tensor) if tensor.shape.num_elements() is None else tensor.shape.num_elements()


@contextlib.contextmanager
def entered(replica: Replica) -> Generator[None]:
    """Makes `replica` the `current()` one of this thread."""
    outer, memory.THREAD.replica = current(), replica
    try:
        yield
    finally:
        memory.THREAD.replica = outer


def apart() -> contextlib.AbstractContextManager:
    """Returns a context of a graph that is not that of the step: replicas do not meet there."""
    step = current()
    return (
        contextlib.nullcontext() if step is None else entered(dataclasses.replace(step, graph=None))
    )
