"""Run a step over all replicas of a strategy and undo it, to see what it would have done."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.private import strategy_adapter, trial_adapter
from kerasdist.training.data import batches
from kerasdist.training.gradients import shared_calls
from kerasdist.training.replica.notes import TrialNotes
from kerasdist.training.replica.replicas import (
    OneDevice,
    Part,
    Replica,
    WholeCopy,
    apart,
    current,
    sees_one_replica,
)
from kerasdist.training.step import replica_run
from kerasdist.training.trial.outcome import CUSTOM_SUM, Outcome


def run(
    strategy: tf.distribute.Strategy,
    step_function: Callable,
    shares: batches.Shares,
    *,
    is_whole: bool,
    weighs_loss: bool = False,
    take_own: Callable | None = None,
    make_whole: Callable[..., Replica] = OneDevice,
) -> list[Outcome]:
    """Runs `step_function` on every replica; returns for each of this worker what came of it.

    Random numbers are alike for all examples, and what is assigned gets its value back.

    Args:
        strategy: One of our strategies; called in its cross-replica context, eagerly.
        step_function: Called as `step_function(data)` in replica context.
        shares: What each replica gets.
        is_whole: Whether that is the whole batch, as on one device. The step then sees one replica.
        weighs_loss: Whether the step can weigh the loss; see `Replica.weighs_loss`.
        take_own: See `StepOptions`.
        make_whole: Makes what stands for one device, of what each `Replica` is made of.
    """
    own = take_own() if take_own else None
    notes = [TrialNotes() for _ in shares.data]

    def on_replica(_: Replica, position: int) -> None:
        start()
        step_function(shares.data[position])

    with (
        trial_adapter.assignments_undone(),
        strategy_adapter.one_replica_seen(sees_one_replica, all_reduce=_keep_sum) as questions,
        trial_adapter.inner_graphs_entered(apart),
        trial_adapter.alike_draws() as start,
        shared_calls.iterators_kept(),
        shared_calls.made_once(strategy),
    ):
        replica_run.on_each(
            strategy,
            _maker(
                strategy, shares, notes, make_whole if is_whole else None, weighs_loss, take_own
            ),
            on_replica,
            go_back=own.put_back if own is not None else None,
        )
    counted = own.changed() if own is not None else []
    if own is not None:
        own.put_back()
    return [_outcome(each, asks_for_number=bool(questions), counted=counted) for each in notes]


def _outcome(notes: TrialNotes, **known: Any) -> Outcome:
    return Outcome(updates=notes.updates, losses=notes.custom_losses, **known)


def _maker(
    strategy: tf.distribute.Strategy,
    shares: batches.Shares,
    notes: list[TrialNotes],
    make_whole: Callable[..., Replica] | None,
    weighs_loss: bool,
    take_own: Callable | None,
) -> Callable[[replica_run.Seat], Replica]:
    kind = make_whole or (WholeCopy if shares.are_whole else Part)
    fractions = replica_run.fractions_of(shares, strategy)
    calls: list = []

    def make(seat: replica_run.Seat) -> Replica:
        return kind(
            replica_id=0,  # It draws the random numbers of one device.
            num_examples=shares.counts[seat.position],
            global_num_examples=shares.total,
            share=1.0 if make_whole else fractions[seat.position],
            may_be_empty=shares.may_be_empty,
            weighs_loss=weighs_loss and not shares.are_whole,
            keras_state=seat.keras_state,
            exchange=functools.partial(replica_run.exchange, take_own, operator.call),
            trial=notes[seat.position],
            is_first=seat.replica_id == 0,
            calls=seat.answers(calls),
        )

    return make


def _keep_sum(original: Callable, reduce_op: Any, value: Any) -> Any:
    """Stands before an `all_reduce` of the program's own: keeps what it makes of a gradient.

    That of the whole batch is no replica's part of it. What the program then clips may be the same
    in this step, and differ in a later one.
    """
    del reduce_op
    replica, result = current(), original(value)
    if replica is not None and replica.trial is not None:
        leaves = zip(tf.nest.flatten(value), tf.nest.flatten(result), strict=True)
        gradients = [summed for each, summed in leaves if each in replica.whole_gradients]
        replica.trial.updates.extend(([CUSTOM_SUM], [each]) for each in gradients)
    return result
