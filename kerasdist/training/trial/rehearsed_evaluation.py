"""The first step of `evaluate`, rehearsed: does it give what one device gives?

On several replicas a loss, and what a test_step returns, count as means over the examples. As
before the first step that trains (`rehearsal`), a few examples go through it twice, operation by
operation: all of them on every replica, and divided. Results of metrics are read for all examples;
what the metrics count is compared. A loss of the user's that is no mean is tried with all examples,
as in training. Validation in `fit` is not looked at where the step that trains has been, and is
made of the same parts.
"""

import functools
from collections.abc import Callable

from kerasdist.private import custom_parts
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.losses import batch_statistics, whole_metrics
from kerasdist.training.replica import own_attributes, replicas
from kerasdist.training.step import graph_errors, replica_run
from kerasdist.training.trial import (
    compiled_losses,
    dry_runs,
    few_examples,
    precision,
    rehearsed_logs,
    rehearsed_run,
    tolerances,
)


def is_due(model) -> bool:
    """Whether a test_step of `model` can give something else than Keras' own parts do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.is_async(strategy):
        return False
    return not custom_parts.evaluates_each_example_alone(model)


def warn_of_differences(
    model,
    step: Callable,
    batch,
    *,
    note_unchecked: Callable[[str], None],
    may_repeat: bool = False,
    differing: str | None = None,
) -> bool:
    """Rehearses a step and warns where it does not give what one device gives.

    Args:
        model: A compiled model whose variables exist.
        step: Its test_step, called with the data of a replica.
        batch: The first global batch: tensors [examples, ...].
        note_unchecked: Called with words about a rehearsal that fails.
        may_repeat: Whether every replica can have the whole batch.
        differing: How its tensors differ in the length of their first axis; None where they do not.

    Returns:
        Whether every replica is to have it, because only then the step gives what one device gives.
    """
    training = model.train_function
    was_checked = isinstance(training, TrainFunction) and training.was_checked
    is_said = was_checked and custom_parts.returns_original_metrics(model, "test_step")
    if is_said and not training.is_repeated:
        return False
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    rehearse = functools.partial(
        *(_rehearse, model, step, batch), may_repeat=may_repeat, differing=differing
    )
    rehearse_enough = functools.partial(few_examples.with_enough, rehearse, model, batch)
    try:
        texts, is_repeated = precision.rehearsed(model, rehearse_enough)
    except Exception as error:  # Of the program, which may mean no other batch than its own.
        if not is_said:
            what = f"{num_replicas} replicas evaluate as one device does"
            note_unchecked(graph_errors.describe_unchecked(what, error))
        return False
    for text in () if is_said else texts:
        warn(text)
    return is_repeated


def _rehearse(
    model,
    step,
    batch,
    *,
    may_repeat: bool,
    differing: str | None,
    how_many: few_examples.HowMany,
) -> tuple[list[str], bool]:
    strategy = model.distribute_strategy
    num_replicas, num_examples = strategy.num_replicas_in_sync, batches.num_examples(batch)
    batch = few_examples.of(batch, how_many, num_replicas)
    nearly, tolerance = few_examples.touched(batch), tolerances.of_results(model)
    if how_many == "one":  # As in training.
        tolerance = max(tolerance, tolerances.ROUGH)
    logs = rehearsed_logs.RehearsedLogs(model, is_training=False)
    with_losses = functools.partial(_step_with_losses, step)
    with (
        dry_runs.without_traces(model),
        batch_statistics.synchronized(model),  # Of a layer that is told to train.
        whole_metrics.updated_with_all(model),
    ):
        run_whole = functools.partial(logs.run_whole, with_losses, nearly)
        with dry_runs.failing_together(strategy):
            whole = dry_runs.rehearse_whole(model, run_whole, batch, nearly)

        def compare(divide: Callable = batches.shares_of) -> tuple[None, list[str]]:
            with logs.watched():
                rehearsed_run.rehearse(
                    strategy,
                    functools.partial(logs.run_part, with_losses),
                    divide(batch, strategy),
                    is_whole=False,
                    take_own=functools.partial(own_attributes.Snapshot, model),
                )
            return None, logs.describe(num_replicas, tolerance)

        compare_whole = functools.partial(compare, batches.whole_for_each)
        try:
            with dry_runs.failing_together(strategy):
                dry_runs.try_parts(model, with_losses, batch)
            _, texts = compiled_losses.compared(
                *(model, compare, whole.own_losses, tolerance, num_examples)
            )
        except Exception as error:
            may_repeat = may_repeat and how_many not in few_examples.TOO_FEW
            if not may_repeat or not dry_runs.finds_nothing(strategy, compare_whole):
                raise
            failure = graph_errors.describe_failure(error, model, step, differing)
            return replica_run.with_repeated([failure], strategy), True
        is_repeated = may_repeat and peers.any_of(strategy, bool(texts))
        is_repeated = is_repeated and dry_runs.finds_nothing(strategy, compare_whole)
    if is_repeated:
        texts = replica_run.with_repeated(texts, strategy)
    return texts, is_repeated


def _step_with_losses(step, data) -> dict:
    """Returns what a step returns, and the losses that Keras adds up meanwhile."""
    logs = step(data)
    return {"logs": logs, "losses": replicas.losses()}
