"""One step over all replicas of a strategy.

    result = replica_run.run(strategy, step_function, shares)
    result.outputs[0]                       # What the first replica of this worker returned.

What each of them knows about the others meanwhile is its `Replica`.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Generator, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_threads, strategy_adapter
from kerasdist.support.unique import unique
from kerasdist.training.context import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.gradients import aggregated_states, randomness, shared_calls
from kerasdist.training.hooks.gradient_values import map_values
from kerasdist.training.hooks.graph_function import rare_cond
from kerasdist.training.losses import loss_scale
from kerasdist.training.replica.dependence import Dependence
from kerasdist.training.replica.eager_operations import EagerOperations
from kerasdist.training.replica.first_answers import FirstAnswers
from kerasdist.training.replica.replicas import (
    Divided,
    OfCustomLoop,
    OneDevice,
    Part,
    Replica,
    StepOptions,
    WholeCopy,
    divided,
    entered,
    sees_one_replica,
)
from kerasdist.training.step import variable_creation


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """Variables that a step sets, of which it may leave some as they are.

    Attributes:
        of_examples: Those that each replica sets by its own examples (metrics, moving statistics),
            which one without examples leaves as they are.
        others: Further ones. A replica without examples leaves those as they are of which the graph
            says the same.
    """

    of_examples: Sequence = ()
    others: Sequence = ()

    def __len__(self):
        return len(self.of_examples) + len(self.others)

    def on_replicas(self, strategy: tf.distribute.Strategy) -> list["States"]:
        """Returns for each replica of this worker its copies of them."""
        of_examples, others = (
            [strategy.experimental_local_results(state) for state in group]
            for group in (self.of_examples, self.others)
        )
        return [
            States(
                of_examples=[copies[position] for copies in of_examples],
                others=[copies[position] for copies in others],
            )
            for position in range(len(peers.local_replicas(strategy)))
        ]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStep:
    """One step over all replicas.

    Attributes:
        outputs: What each replica of this worker returned, in order.
        shares: What each of them counts for in a mean over the examples; over all workers they
            add up to 1.
        num_examples: The examples of the global batch.
        sums: What came of `extra_sums` over all replicas; empty where no gradients were summed.
        is_discarded: Bool scalar, whether it leaves nothing behind; None where it always does.
    """

    outputs: tuple
    shares: list
    num_examples: Any
    sums: dict
    is_discarded: Any = None


_DEFAULTS = StepOptions()


class OwnConditionError(RuntimeError):
    """A step updates the weights under a condition that each replica computes from its examples."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where a replica is.

    Attributes:
        replica_id: Its position among all replicas.
        position: The same among those of this worker.
        keras_state: What Keras keeps for the thread of the program.
    """

    replica_id: int
    position: int
    keras_state: dict

    def answers(self, told: list) -> FirstAnswers:
        """Returns what the first replica of this worker tells the others by a list."""
        return FirstAnswers(told, is_first=self.position == 0)


def on_each(
    strategy: tf.distribute.Strategy,
    make_replica: Callable,
    function: Callable,
    *,
    go_back: Callable[[], None] | None = None,
    start: Callable | None = None,
) -> Any:
    """Runs a function on each replica: in steps that count, in trials, in loops of a program's own.

    Args:
        strategy: One of our strategies.
        make_replica: Called as make_replica(seat, ...); makes what is `current()` meanwhile.
        function: Called as function(replica, position, ...) in replica context. Both get what
            `start` calls its argument with.
        go_back: Is called before each replica of this worker but the first.
        start: Runs what it is given on the replicas; as `peers.on_replicas` does where it is None.
    """
    first, *_ = peers.local_replicas(strategy)
    keras_state = keras_threads.thread_state()

    def on_replica(*args: Any, **kwargs: Any) -> Any:
        keras_threads.inherit(keras_state)
        replica_id = peers.replica_id()
        seat = Seat(replica_id=replica_id, position=replica_id - first, keras_state=keras_state)
        if go_back is not None and seat.position > 0:
            go_back()
        replica = make_replica(seat, *args, **kwargs)
        with entered(replica):
            outputs = function(replica, seat.position, *args, **kwargs)
        return outputs

    return peers.on_replicas(strategy, on_replica) if start is None else start(on_replica)


def run(
    strategy: tf.distribute.Strategy,
    step_function: Callable,
    shares: batches.Shares,
    *,
    options: StepOptions = _DEFAULTS,
    checks: Sequence = (),
    extra_sums: Sequence = (),
    states: States = States(),
) -> GlobalStep:
    """Runs `step_function` once on every replica, each with its share of the global batch.

    Args:
        strategy: One of our strategies; called in its cross-replica context.
        step_function: Called as `step_function(data)` in replica context.
        shares: The global batch, split.
        options: How it is run.
        checks: Tensors that must be there before anything of the step runs.
        extra_sums: Pairs of a name and a float32 scalar of this worker, which is summed over the
            workers together with the gradients.
        states: The `States` that the step sets.
    """
    first, *_ = peers.local_replicas(strategy)
    is_one_device = strategy.num_replicas_in_sync == 1
    fractions = fractions_of(shares, strategy)
    may_leave = (shares.may_be_empty and not is_one_device) or options.may_discard
    states = states if may_leave else States()
    kept = states.on_replicas(strategy)
    is_looked_at = tf.executing_eagerly() and not is_one_device and not shares.are_whole
    operations = EagerOperations() if is_looked_at else None
    begins_again = not is_one_device and (shares.are_whole or not tf.executing_eagerly())
    go_back = _way_back(options.take_own) if begins_again else None
    make = _maker(strategy, shares, fractions, options, extra_sums, operations)

    def on_replica(replica: Replica, position: int) -> tuple:
        data = shares.data[position]
        with after(data, checks), _put_back(states, kept[position], replica):
            outputs = step_function(data)
        _check_applied(replica)
        return outputs, replica.sums, is_discarded(replica)

    seed_of = 0 if shares.are_whole else first
    with _around_replicas(strategy, seed_of, operations), shared_calls.made_once(strategy):
        results = on_each(strategy, make, on_replica, go_back=go_back)
    results = strategy.experimental_local_results(results)
    return GlobalStep(
        outputs=tuple(outputs for outputs, *_ in results),
        shares=_weights_of_logs(shares, fractions, strategy),
        num_examples=shares.total,
        sums=results[0][1],
        is_discarded=results[0][2],
    )


def _maker(
    strategy: tf.distribute.Strategy,
    shares: batches.Shares,
    fractions: list,
    options: StepOptions,
    extra_sums: Sequence,
    operations: EagerOperations | None,
) -> Callable[[Seat], Replica]:
    is_one_device = strategy.num_replicas_in_sync == 1
    kind = OneDevice if is_one_device else WholeCopy if shares.are_whole else Part
    seeds: list = []
    calls: list = []

    def make(seat: Seat) -> Replica:
        is_first = seat.position == 0
        data = shares.data[seat.position]
        replica_id = seat.replica_id if options.replica_id is None else options.replica_id
        is_timed = options.times is not None and is_first
        send = options.times.of_exchange if is_timed else operator.call
        return kind(
            replica_id=0 if shares.are_whole else replica_id,
            is_first=seat.replica_id == 0,
            num_examples=shares.counts[seat.position],
            global_num_examples=shares.total,
            share=fractions[seat.position],
            may_be_empty=shares.may_be_empty,
            weighs_loss=options.weighs_loss and not shares.are_whole,
            keras_state=seat.keras_state,
            options=options,
            data=data,
            dependence=Dependence(data, operations),
            delivery=options.make_delivery(),
            exchange=functools.partial(exchange, options.take_own, send),
            extra_sums={
                name: value if is_first else tf.zeros_like(value) for name, value in extra_sums
            },
            seeds=seat.answers(seeds),
            calls=seat.answers(calls),
            draws_alone=peers.count(strategy) == 1,
        )

    return make


def run_custom_loop(
    strategy: tf.distribute.Strategy, original: Callable, function: Callable, args: Any, kwargs: Any
) -> Any:
    """Runs on every replica what a loop of the program's own gives to `strategy.run`.

    Args:
        strategy: One of our strategies.
        original: Does it without us, as original(function, args, kwargs).
        function: Called on each replica with its part of the arguments.
        args: The arguments.
        kwargs: Those by name.
    """
    if strategy.num_replicas_in_sync == 1:
        return original(function, args, kwargs)
    first, *_ = peers.local_replicas(strategy)
    operations = EagerOperations() if tf.executing_eagerly() else None
    go_back = None if operations else _way_back(None)
    seeds: list = []

    def make(seat: Seat, *args: Any, **kwargs: Any) -> Replica:
        return OfCustomLoop.made(
            replica_id=seat.replica_id,
            keras_state=seat.keras_state,
            dependence=Dependence((args, kwargs), operations),
            seeds=seat.answers(seeds),
        )

    def on_replica(replica: Replica, _: int, *args: Any, **kwargs: Any) -> Any:
        outputs = function(*args, **kwargs)
        _check_applied(replica)
        return outputs

    with loss_scale.traced_again_if_late(), _around_replicas(strategy, first, operations):
        return on_each(
            strategy,
            make,
            on_replica,
            go_back=go_back,
            start=lambda on_replica: original(on_replica, args, kwargs),
        )


@contextlib.contextmanager
def _around_replicas(
    strategy: tf.distribute.Strategy, first_replica: int, operations: EagerOperations | None
) -> Generator[None]:
    """Is entered around a step of replicas.

    Args:
        strategy: Theirs.
        first_replica: See `randomness.graph_seed_of_worker`.
        operations: The `EagerOperations` that look at them, or None.
    """
    is_one_device = strategy.num_replicas_in_sync == 1
    with (
        variable_creation.made_at_once(strategy),
        contextlib.nullcontext()
        if is_one_device
        else strategy_adapter.one_replica_seen(sees_one_replica, all_reduce=_all_reduce),
        randomness.graph_seed_of_worker(first_replica),
        operations.watched() if operations else contextlib.nullcontext(),
    ):
        yield


def _all_reduce(original: Callable, reduce_op: Any, value: Any) -> Any:
    """Stands before an `all_reduce` of the program's own: the same on all replicas afterwards."""
    replica = divided()
    if replica is None:
        return original(value)
    replica.check_can_meet()
    is_sum = reduce_op in (tf.distribute.ReduceOp.SUM, "SUM", "sum")
    if is_sum and replica.may_be_empty and replica.dependence and replica.dependence.is_in(value):
        # What a replica computes of an example that does not count is no part of a sum.
        value = tf.nest.map_structure(lambda each: map_values(each, replica.of_examples), value)
    result = original(value)
    replica.note_sum(result)
    return result


def with_repeated(texts: list[str], strategy: tf.distribute.Strategy) -> list[str]:
    """Returns what was found of a step, and with the last of it that replicas have whole batches.

    Nothing where nothing is news: the model's user has been told before.
    """
    if not texts:
        return []
    *others, last = texts
    return [
        *others,
        f"{last} Until you change it, each replica computes the whole batch, which gives what one "
        f"device gives: {strategy.num_replicas_in_sync} replicas are no faster than one.",
    ]


def _way_back(take_own: Callable | None) -> Callable[[], None]:
    """Returns what lets the next replica find in Python what the first one has found."""
    own = take_own() if take_own else None
    generators = randomness.PythonGenerators()

    def go_back():
        generators.put_back()
        if own is not None:
            own.put_back()

    return go_back


def exchange(take_own: Callable | None, send: Callable, sum_up: Callable, tensors: list) -> list:
    """Returns tensors summed up over the replicas, which leaves a model's own as it is here.

    Args:
        take_own: See `StepOptions`.
        send: Called as send(sum_up, tensors); returns what `sum_up(tensors)` does.
        sum_up: Adds up over the replicas.
        tensors: Of this replica.
    """
    own = take_own() if take_own else None
    result = send(sum_up, tensors)
    if own is not None:
        own.put_back()
    return result


def inlined(step_function: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a step that is a `tf.function` as the Python of it: replicas cannot meet inside one.

    With parameter servers it would keep what it was first traced with, such as a worker's own
    counts, where the next trace has others.

    Args:
        step_function: The model's train_step or test_step.
        strategy: A strategy of ours. One device runs the function as it is, as Keras does.
    """
    is_one_device = strategy.num_replicas_in_sync == 1 and not traits.has_remote_variables(strategy)
    return step_function if is_one_device else as_python(step_function)


def as_python(step_function: Any) -> Any:
    """Returns what a `tf.function` was made of, to be traced with what is around it."""
    if not isinstance(step_function, tf.types.experimental.PolymorphicFunction):
        return step_function
    inlined_step = tf.autograph.to_graph(step_function.python_function)
    inlined_step.__name__ = step_function.__name__
    return inlined_step


def after(data: Any, checks: Sequence = ()) -> contextlib.AbstractContextManager:
    """Keeps what is traced inside from running before `data` and `checks` are there.

    TensorFlow runs whatever does not need the batch at once: at the end of the data a step without
    a batch would still count, decay weights and decay learning rates.
    """
    leaves = tf.nest.flatten(data, expand_composites=True)  # Ragged tensors have several.
    leaves = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    return tf.control_dependencies([*leaves, *checks])


@contextlib.contextmanager
def _put_back(states: States, copies: States, replica: Replica) -> Generator[None]:
    """Lets what is traced inside leave states as they are where the step counts for nothing.

    Args:
        states: The states.
        copies: Those of this replica, in the same order.
        replica: This replica.
    """
    of_examples, others = copies.of_examples, copies.others
    before = {id(state): state.read_value() for state in (*of_examples, *others)}
    yield

    def put_back_if(reason: tf.Tensor, changed: list, values: dict) -> None:
        def put_back():
            for state in changed:
                state.assign(values[id(state)])

        if changed:
            rare_cond(reason, put_back)

    if replica.states.discards:
        put_back_if(tf.reduce_any(replica.states.discards), [*of_examples, *others], before)
    if replica.may_be_empty and isinstance(replica, Divided):
        is_empty = tf.equal(replica.num_examples, 0)
        own = aggregated_states.without_aggregated(others)
        resets = {
            id(copy): replica.states.resets[id(state)]
            for state, copy in zip(states.of_examples, of_examples, strict=True)
            if id(state) in replica.states.resets
        }
        changed = [*of_examples, *replica.dependence.among(own)]
        put_back_if(is_empty, changed, before | resets)


def _check_applied(replica: Replica) -> None:
    if isinstance(replica, Divided) and not tf.executing_eagerly():
        _check_conditions(replica)
    # A LossScaleOptimizer that is called may leave out the update.
    if not replica.options.callbacks or replica.updates.graphs:
        return
    callback, *_ = replica.options.callbacks
    model = callback.model
    # Keras' own step does not call it if there is nothing to train, and warns.
    if model is None or model.trainable_variables:
        raise RuntimeError(
            f"{type(callback).__name__} takes part in `optimizer.apply`, which this "
            "train_step does not call. Apply the gradients with the optimizer, or leave the "
            "callback out."
        )


def _check_conditions(replica: Divided) -> None:
    graphs = unique(replica.updates.graphs)
    if any(replica.dependence.has_own_condition(graph, replica.graph) for graph in graphs):
        raise OwnConditionError(
            "A train_step calls `optimizer.apply` under a condition that each replica computes "
            "from its own examples, so that some would update their weights and others not. "
            "Decide by what all replicas share: `kerasdist.global_mean(loss)`, or a gradient of "
            "`tape.gradient`, which is that of the whole batch."
        )


def is_discarded(replica: Replica) -> Any:
    """Returns whether a replica was told to leave nothing behind: bool scalar; None if it was not.

    Asked when its step is traced.
    """
    return tf.reduce_any(replica.states.discards) if replica.states.discards else None


def fractions_of(shares: batches.Shares, strategy: tf.distribute.Strategy) -> list:
    """Returns the share of each replica of this worker in the global batch."""
    if strategy.num_replicas_in_sync == 1:
        return [1.0] * len(shares.counts)
    if shares.are_whole:  # The first one's counts, to the last bit.
        return [float(replica == 0) for replica in peers.local_replicas(strategy)]
    return [_fraction(count, shares.total) for count in shares.counts]


def _weights_of_logs(
    shares: batches.Shares, fractions: list, strategy: tf.distribute.Strategy
) -> list:
    # Every worker reads its own logs, too.
    return [1 / strategy.num_replicas_in_sync] * len(fractions) if shares.are_whole else fractions


def _fraction(count: Any, total: Any) -> Any:
    if isinstance(count, int) and isinstance(total, int):
        return count / total if total else 0.0
    return tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(total, tf.float32))
