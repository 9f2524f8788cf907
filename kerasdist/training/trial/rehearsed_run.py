"""One step over all replicas of a strategy that is undone, to see what it would have done."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_threads, strategy_adapter, trial_adapter
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import shared_calls
from kerasdist.training.replica.first_answers import FirstAnswers
from kerasdist.training.replica.replicas import (
    Replica,
    TrialNotes,
    apart,
    current,
    entered,
    sees_one_replica,
)
from kerasdist.training.step import replica_run
from kerasdist.training.trial.outcome import CUSTOM_SUM


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsed:
    """What a step would have done.

    Attributes:
        updates: For each replica of this worker and each update: paths of the variables and their
            gradients over all replicas.
        asks_for_number: Whether the step asked for the number of replicas; known where it had the
            whole batch.
        own_losses: The user's compiled losses that the first replica of this worker has computed,
            each with the labels and predictions that it was called with.
        counted: Names of attributes in which the user's own has counted or collected something.
    """

    updates: list
    asks_for_number: bool
    own_losses: list
    counted: list


def rehearse(
    strategy,
    step_function,
    shares: batches.Shares,
    *,
    is_whole: bool,
    weighs_loss: bool = False,
    take_own: Callable | None = None,
) -> Rehearsed:
    """Runs `step_function` on every replica and returns what it would have updated.

    Random numbers are alike for all examples, and what is assigned gets its value back.

    Args:
        strategy: One of our strategies; called in its cross-replica context, eagerly.
        step_function: Called as `step_function(data)` in replica context.
        shares: What each replica gets.
        is_whole: Whether that is the whole batch, as on one device. The step then sees one replica.
        weighs_loss: Whether the step can weigh the loss; see `Replica.weighs_loss`.
        take_own: See `StepOptions`.
    """
    first, *_ = peers.local_replicas(strategy)
    fractions = replica_run.fractions_of(shares, strategy)
    updates: list = [[] for _ in shares.data]
    own_losses: list = []
    calls: list = []
    keras_state = keras_threads.thread_state()
    own = take_own() if take_own else None

    def replica_fn():
        keras_threads.inherit(keras_state)
        replica_id = peers.replica_id()
        position = replica_id - first
        if own is not None and position > 0:
            own.put_back()
        count = shares.counts[position]
        replica: Any = Replica(
            replica_id=0,  # Of which the random numbers are those of one device.
            num_examples=count,
            global_num_examples=shares.total,
            share=1.0 if is_whole else fractions[position],
            has_whole_batch=is_whole or shares.are_whole,
            is_alone=is_whole,
            may_be_empty=shares.may_be_empty,
            weighs_loss=weighs_loss and not shares.are_whole,
            keras_state=keras_state,
            exchange=functools.partial(replica_run.exchange, take_own, operator.call),
            trial=TrialNotes(),
            is_first=replica_id == 0,
            calls=FirstAnswers(calls, is_first=position == 0),
        )
        start()
        with entered(replica):
            step_function(shares.data[position])
        updates[position].extend(replica.trial.updates)
        if position == 0:
            own_losses.extend(replica.trial.own_losses)

    with (
        trial_adapter.assignments_undone(),
        strategy_adapter.one_replica_seen(sees_one_replica, all_reduce=_keep_sum) as questions,
        trial_adapter.inner_graphs_entered(apart),
        trial_adapter.alike_draws() as start,
        shared_calls.iterators_kept(),
        shared_calls.made_once(strategy),
    ):
        peers.on_replicas(strategy, replica_fn)
    counted = own.changed() if own is not None else []
    if own is not None:
        own.put_back()
    return Rehearsed(
        updates=updates,
        asks_for_number=bool(questions),
        own_losses=own_losses,
        counted=counted,
    )


def _keep_sum(original, reduce_op, value):
    """Stands before an `all_reduce` of the program's own: keeps what it makes of a gradient.

    That of the whole batch is no replica's part of it. What the program then clips may be the same
    in this step, and differ in a later one.
    """
    del reduce_op
    step, result = current(), original(value)
    if step is not None and step.trial is not None:
        leaves = zip(tf.nest.flatten(value), tf.nest.flatten(result), strict=True)
        gradients = [summed for each, summed in leaves if each in step.whole_gradients]
        step.trial.updates.extend(([CUSTOM_SUM], [each]) for each in gradients)
    return result
