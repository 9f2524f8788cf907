"""What one replica knows about the global batch while its step is traced.

A global batch is split over the replicas, and the shares need not be equal: the last batch of an
epoch may be odd, or smaller than the number of replicas. Whatever must then be weighed by examples
(losses, gradients, means) asks `current()` for its share instead of assuming 1 / num_replicas.

    replica_step = current()
    if replica_step is not None:            # None outside a step of our strategies
        loss = loss * replica_step.share    # the global loss is the sum of these over the replicas
"""

import contextlib
import dataclasses
import functools
import operator
import threading
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_adapter, rehearsal_adapter, tensorflow_adapter
from kerasdist.training import peers
from kerasdist.training.data import batches
from kerasdist.training.step import delivery, late_variables, rare
from kerasdist.training.step.dependence import Dependence

# MirroredStrategy traces every replica in a thread of its own.
_local = threading.local()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStep:
    """The share of one replica in the global batch of the step that is being traced.

    Attributes:
        replica_id: Position of the replica among all replicas, from 0.
        num_examples: int32 scalar, the examples on this replica that count. Where it is 0, the
            replica computes with one that does not (see `batches`).
        global_num_examples: int32 scalar, the examples on all replicas.
        share: float32 scalar num_examples / global_num_examples, or a Python float where the
            shapes are static; the shares of all replicas add up to 1.
        is_only_replica: Whether this is one device, with the whole batch.
        may_be_empty: Whether this replica can be without examples.
        weighs_loss: Whether the step multiplies the loss by `share` before the backward pass,
            which saves one multiplication for every gradient after it.
        keras_state: What Keras keeps for the thread of the program.
        callbacks: The update callbacks of the `fit` that runs.
        is_quiet: Whether none of them looks at this step; see `StepCallback.looks_within`.
        data: The batch of this replica.
        dependence: The `Dependence` that follows it; None in a rehearsal.
        graph: The graph of the step itself; in another one, of a condition or a loop, replicas
            cannot meet.
        delivery: How the aggregated gradients reach the variables.
        exchange: Called as exchange(sum_up, tensors) for the messages between replicas.
        riders: float32 scalars that are summed over the replicas together with the gradients, by
            name.
        added_losses: What layers have added with `add_loss` on this replica, by the layer's id.
        losses: The mean losses of this replica by the names of their metrics, as they are tracked.
        divisors: What each loss was divided by, in the order in which they were computed; on one
            device only where there are callbacks.
        divided: The optimizers of which the loss was divided by the number of replicas.
        updates: The optimizers whose updates the callbacks took part in.
        sums: What came of the riders.
        of_all: What `whole_metrics` was given on this replica, each by its id with what it is over
            all replicas.
        discards: Bool scalars, any of which says that the step is to leave nothing behind: no count
            in metrics, no moving statistics. They are the same on all replicas.
        rehearsed: In a rehearsal, paths of the variables and their gradients of each update, which
            is then not made; None in a step that counts.
    """

    replica_id: int
    num_examples: Any
    global_num_examples: Any
    share: Any
    is_only_replica: bool
    may_be_empty: bool
    weighs_loss: bool
    keras_state: dict
    callbacks: tuple = ()
    is_quiet: bool = False
    data: Any = None
    dependence: Any = None
    graph: Any = dataclasses.field(default_factory=tf.compat.v1.get_default_graph)
    delivery: Any = dataclasses.field(default_factory=delivery.LocalDelivery)
    exchange: Callable = operator.call
    riders: dict = dataclasses.field(default_factory=dict)
    added_losses: dict = dataclasses.field(default_factory=dict)
    losses: dict = dataclasses.field(default_factory=dict)
    divisors: list = dataclasses.field(default_factory=list)
    divided: list = dataclasses.field(default_factory=list)
    updates: list = dataclasses.field(default_factory=list)
    sums: dict = dataclasses.field(default_factory=dict)
    of_all: dict = dataclasses.field(default_factory=dict)
    discards: list = dataclasses.field(default_factory=list)
    rehearsed: Any = None


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStep:
    """One step over all replicas.

    Attributes:
        outputs: What each replica of this worker returned, in order.
        shares: The share of each of them in the global batch.
        num_examples: The examples of the global batch.
        sums: The sums of the riders over all replicas; empty where no gradients were summed.
        is_discarded: Bool scalar, whether it leaves nothing behind; None where it always does.
    """

    outputs: tuple
    shares: list
    num_examples: Any
    sums: dict
    is_discarded: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsed:
    """What a step would have done.

    Attributes:
        updates: For each replica of this worker and each update: paths of the variables and their
            gradients over all replicas.
        asks_for_number: Whether the step asked for the number of replicas; known where it had the
            whole batch.
    """

    updates: list
    asks_for_number: bool


def current() -> ReplicaStep | None:
    """Returns the step that this thread traces, or None outside the steps of our strategies."""
    return getattr(_local, "replica_step", None)


def global_num_examples():
    """Returns the examples of the global batch: int32 scalar; 0 outside a step."""
    step = current()
    return step.global_num_examples if step else 0


def losses() -> dict:
    """Returns the losses that the step of this thread has tracked so far."""
    step = current()
    return dict(step.losses) if step else {}


def divisors() -> list[Divisor]:
    """Returns the different divisors of the losses that the step of this thread has computed."""
    step = current()
    different = {(each.name, id(each.weights)): each for each in step.divisors} if step else {}
    return list(different.values())


def num_updates():
    """Returns the updates so far of the optimizer that updates now: int scalar, traced."""
    step = current()
    assert step is not None
    return tf.convert_to_tensor(step.updates[-1].iterations)


def is_first_update() -> bool:
    """Whether no other update comes before this one in the step of this thread."""
    step = current()
    return step is not None and len(step.updates) == 1


def discard_if(*reasons) -> None:
    """Lets the step of this thread leave nothing behind where one of these bool scalars is true."""
    step = current()
    if step is not None:
        step.discards.extend(reasons)


def take_discards() -> list:
    """Returns what `discard_if` was told in the step of this thread, and forgets it."""
    step = current()
    if step is None:
        return []
    taken = list(step.discards)
    step.discards.clear()
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
    summed = tensorflow_adapter.differentiable_sum(flat, _weigh_by(step))
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
    step, add_up = current(), tensorflow_adapter.differentiable_sum
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
def entered(replica_step: ReplicaStep) -> Generator[None]:
    """Makes `replica_step` the `current()` one of this thread."""
    outer, _local.replica_step = current(), replica_step
    try:
        yield
    finally:
        _local.replica_step = outer


def run(
    strategy,
    step_function,
    shares: batches.Shares,
    *,
    weighs_loss=False,
    checks=(),
    callbacks=(),
    is_quiet=False,
    riders=(),
    states_of_examples=(),
    other_states=(),
    may_discard=False,
    make_delivery=delivery.LocalDelivery,
    times=None,
) -> GlobalStep:
    """Runs `step_function` once on every replica, each with its share of the global batch.

    Args:
        strategy: One of our strategies; called in its cross-replica context.
        step_function: Called as `step_function(data)` in replica context.
        shares: The global batch, split.
        weighs_loss: Whether the step can weigh the loss; see `ReplicaStep.weighs_loss`.
        checks: Tensors that must be there before anything of the step runs.
        callbacks: See `ReplicaStep.callbacks`.
        is_quiet: See `ReplicaStep.is_quiet`.
        riders: Pairs of a name and a float32 scalar of this worker, which is summed over the
            workers together with the gradients.
        states_of_examples: Variables that each replica sets by its own examples (metrics, moving
            statistics), which one without examples leaves as they are.
        other_states: Further ones that the step sets. A replica without examples leaves those as
            they are of which the graph says the same.
        may_discard: Whether a callback may discard the step, which then sets none of all of them.
        make_delivery: Returns how gradients reach the variables; see `ReplicaStep.delivery`.
        times: `StepTimes` that measure the messages between replicas, or None.
    """
    is_only_replica = strategy.num_replicas_in_sync == 1
    fractions = [
        1.0 if is_only_replica else _fraction(count, shares.total) for count in shares.counts
    ]
    first, *_ = peers.local_replicas(strategy)
    keras_state = keras_adapter.thread_state()
    may_be_empty = shares.may_be_empty and not is_only_replica
    groups = (states_of_examples, other_states) if may_be_empty or may_discard else ((), ())
    of_examples, others = (
        [strategy.experimental_local_results(state) for state in group] for group in groups
    )

    def replica_fn():
        keras_adapter.inherit(keras_state)
        replica_id = peers.replica_id()
        data = shares.data[replica_id - first]
        replica_step = ReplicaStep(
            replica_id=replica_id,
            num_examples=shares.counts[replica_id - first],
            global_num_examples=shares.total,
            share=fractions[replica_id - first],
            is_only_replica=is_only_replica,
            may_be_empty=shares.may_be_empty,
            weighs_loss=weighs_loss,
            keras_state=keras_state,
            callbacks=callbacks,
            is_quiet=is_quiet,
            data=data,
            dependence=Dependence(data),
            delivery=make_delivery(),
            exchange=times.of_exchange if times and replica_id == first else operator.call,
            riders={
                name: value if replica_id == first else tf.zeros_like(value)
                for name, value in riders
            },
        )
        with (
            entered(replica_step),
            after(data, checks),
            _put_back(
                [copies[replica_id - first] for copies in of_examples],
                [copies[replica_id - first] for copies in others],
                replica_step,
            ),
        ):
            outputs = step_function(data)
        if callbacks and not replica_step.updates:
            raise RuntimeError(
                f"{type(callbacks[0]).__name__} takes part in `optimizer.apply`, which this "
                "train_step does not call. Apply the gradients with the optimizer, or leave the "
                "callback out."
            )
        return outputs, replica_step.sums, _is_discarded(replica_step)

    with late_variables.made_at_once(strategy):
        replicas = strategy.experimental_local_results(strategy.run(replica_fn))
    return GlobalStep(
        outputs=tuple(outputs for outputs, *_ in replicas),
        shares=fractions,
        num_examples=shares.total,
        sums=replicas[0][1],
        is_discarded=replicas[0][2],
    )


def inlined(step_function, strategy):
    """Returns a step that is a `tf.function` as the Python of it: replicas cannot meet inside one.

    Args:
        step_function: The model's train_step or test_step.
        strategy: A strategy of ours. One device runs the function as it is, as Keras does.
    """
    return step_function if strategy.num_replicas_in_sync == 1 else as_python(step_function)


def as_python(step_function):
    """Returns what a `tf.function` was made of, to be traced with what is around it."""
    if not isinstance(step_function, tf.types.experimental.PolymorphicFunction):
        return step_function
    inlined_step = tf.autograph.to_graph(step_function.python_function)
    inlined_step.__name__ = step_function.__name__
    return inlined_step


def rehearse(
    strategy, step_function, shares: batches.Shares, *, is_whole: bool, weighs_loss: bool = False
) -> Rehearsed:
    """Runs `step_function` on every replica and returns what it would have updated.

    Random numbers are alike for all examples, and what is assigned gets its value back.

    Args:
        strategy: One of our strategies; called in its cross-replica context, eagerly.
        step_function: Called as `step_function(data)` in replica context.
        shares: What each replica gets.
        is_whole: Whether that is the whole batch, as on one device. The step then sees one replica.
        weighs_loss: Whether the step can weigh the loss; see `ReplicaStep.weighs_loss`.
    """
    first, *_ = peers.local_replicas(strategy)
    updates: list = [[] for _ in shares.data]
    keras_state = keras_adapter.thread_state()

    def replica_fn():
        keras_adapter.inherit(keras_state)
        position = peers.replica_id() - first
        count = shares.counts[position]
        replica_step = ReplicaStep(
            replica_id=0,  # Of which the random numbers are those of one device.
            num_examples=count,
            global_num_examples=shares.total,
            share=1.0 if is_whole else _fraction(count, shares.total),
            is_only_replica=is_whole,
            may_be_empty=shares.may_be_empty,
            weighs_loss=weighs_loss,
            keras_state=keras_state,
            rehearsed=[],
        )
        start()
        with entered(replica_step):
            step_function(shares.data[position])
        updates[position].extend(replica_step.rehearsed or ())

    def sees_one_replica():  # Not the strategy around the steps.
        return is_whole and current() is not None

    with (
        rehearsal_adapter.assignments_undone(),
        rehearsal_adapter.one_replica_seen(sees_one_replica) as questions,
        rehearsal_adapter.alike_draws() as start,
    ):
        strategy.run(replica_fn)
    return Rehearsed(updates=updates, asks_for_number=bool(questions))


@contextlib.contextmanager
def _put_back(of_examples: list, others: list, step: ReplicaStep) -> Generator[None]:
    """Lets what is traced inside leave states as they are where the step counts for nothing."""
    before = {id(state): state.read_value() for state in (*of_examples, *others)}
    yield

    def put_back_if(reason, states):
        def put_back():
            for state in states:
                state.assign(before[id(state)])

        if states:
            rare.cond(reason, put_back)

    if step.discards:
        put_back_if(tf.reduce_any(step.discards), [*of_examples, *others])
    if step.may_be_empty and not step.is_only_replica:
        is_empty = tf.equal(step.num_examples, 0)
        put_back_if(is_empty, [*of_examples, *step.dependence.among(others)])


def _is_discarded(step: ReplicaStep):
    return tf.reduce_any(step.discards) if step.discards else None


def after(data, checks=()):
    """Keeps what is traced inside from running before `data` and `checks` are there.

    TensorFlow runs whatever does not need the batch at once: at the end of the data a step without
    a batch would still count, decay weights and decay learning rates.
    """
    leaves = tf.nest.flatten(data, expand_composites=True)  # Of ragged and sparse tensors too.
    leaves = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    return tf.control_dependencies([*leaves, *checks])


def _fraction(count, total):
    if isinstance(count, int) and isinstance(total, int):
        return count / total if total else 0.0
    return tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(total, tf.float32))
