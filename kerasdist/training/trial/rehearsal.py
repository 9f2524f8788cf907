"""The first step, rehearsed: is its gradient the one that the whole batch gives on one device?

On several replicas a loss counts as a mean over its examples. A program that sums, divides by
something of its own or compares examples with each other means something else, and nothing in its
code says so. Before the first step that is not all Keras', some examples go through it twice,
operation by operation: all of them on every replica, and divided over the replicas. Random numbers
are made alike, and nothing that is assigned stays, no variable and no attribute. Where the
gradients differ, and by more than rounding explains, a warning says so: a small difference must be
nearly the same with weights nearby. Where nothing but the loss is the user's own, the net predicts
once, and the loss alone goes through it.

Before it warns, the divided examples go through it once more, now with compiled losses of the
user's that see all of them (`whole_losses`). Where that gives the gradient of one device, the steps
that count do so, too.

Where that is not so, they go through it a last time, all of them on every replica, whose gradients
meet as ever. If this gives what one device gives, so do the steps that count: no faster than one
device, and with its weights.

What the step returns is compared, too: a log counts as a mean over the examples, and a norm or a
maximum is none.

What a program assigns by itself, to weights or to a state such as a running mean, never meets what
the other replicas assign: where that is not the same on all of them, another warning says so.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.losses import batch_statistics, whole_metrics
from kerasdist.training.replica import own_attributes
from kerasdist.training.step import graph_errors, replica_run
from kerasdist.training.trial import (
    assignments,
    compare,
    compiled_losses,
    dry_runs,
    few_examples,
    precision,
    rehearsed_logs,
    rehearsed_run,
    rehearsed_step,
    tolerances,
    words,
)
from kerasdist.training.trial.compare import GradientDifference


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """What came of the examples, divided over the replicas.

    Attributes:
        rehearsed: The updates.
        spreads: Of `assignments.note_spreads`.
    """

    rehearsed: rehearsed_run.Rehearsed
    spreads: list


def is_due(model) -> bool:
    """Whether a step of `model` can mean something else than Keras' own do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.is_async(strategy):
        return False
    return (
        custom_parts.has_custom_parts(model)
        or not custom_parts.has_original_losses(model)
        # Beside another loss, of another shape, which Keras adds to the number of each example.
        or custom_parts.has_unreduced_losses(model)
    )


def warn_of_differences(
    model,
    step: Callable,
    batch,
    *,
    note_unchecked: Callable[[str], None],
    may_repeat: bool = False,
    differing: str | None = None,
) -> bool:
    """Rehearses a step and warns where its gradient is not that of the whole batch.

    Args:
        model: A compiled model whose variables exist.
        step: Its train_step, called with the data of a replica.
        batch: The first global batch: tensors [examples, ...].
        note_unchecked: Called with words about a rehearsal that fails.
        may_repeat: Whether every replica can have the whole batch.
        differing: How its tensors differ in the length of their first axis; None where they do not.

    Returns:
        Whether every replica is to have it, because only then the step does what it does on one
        device.
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    rehearse = functools.partial(
        *(_describe_differences, model, step, batch), may_repeat=may_repeat, differing=differing
    )
    rehearse_enough = functools.partial(few_examples.with_enough, rehearse, model, batch)
    try:
        texts, is_repeated = precision.rehearsed(model, rehearse_enough)
    except Exception as error:  # Of the program, which may mean no other batch than its own.
        what = f"{num_replicas} replicas give the gradient of one device"
        note_unchecked(graph_errors.describe_unchecked(what, error))
        return False
    for text in texts:
        warn(text)
    return is_repeated


def _describe_differences(
    model,
    step: Callable,
    batch,
    *,
    may_repeat: bool,
    differing: str | None,
    how_many: few_examples.HowMany,
) -> tuple[list[str], bool]:
    """Returns in words where a step over the replicas differs from that of the whole batch.

    Args:
        model: See `warn_of_differences`.
        step: See `warn_of_differences`.
        batch: See `warn_of_differences`.
        may_repeat: See `warn_of_differences`.
        differing: See `warn_of_differences`.
        how_many: How many examples of the batch.

    Returns:
        The words, and whether every replica is to have the whole batch.

    Raises:
        FloatingPointError: A few are not: on one device their gradients are NaN as well, or zero.
    """
    strategy = model.distribute_strategy
    with (
        dry_runs.without_traces(model),
        batch_statistics.synchronized(model),  # A difference that has a warning of its own.
        whole_metrics.updated_with_all(model),
    ):
        comparison = _Comparison(model, step, batch, how_many=how_many)
        try:
            comparison.try_parts()
            parts, difference = comparison.of_parts_or_whole_losses()
        except Exception as error:
            if (
                how_many in few_examples.TOO_FEW
                or not may_repeat
                or not comparison.finds_nothing_if_repeated()
            ):
                raise
            failure = graph_errors.describe_failure(error, model, step, differing)
            return replica_run.with_repeated([failure], strategy), True
        of_logs = [] if difference else comparison.describe_logs()  # What follows is no news.
        is_other = bool(difference) or assignments.are_different(parts.spreads)
        is_other = is_other or comparison.has_counted
        is_repeated = may_repeat and peers.any_of(strategy, is_other)
        is_repeated = is_repeated and comparison.finds_nothing_if_repeated()
    texts = comparison.describe(parts, difference)
    if not is_repeated:
        return [*of_logs, *texts], False
    return replica_run.with_repeated(texts, strategy), True


class _Comparison:
    """A step of one device, rehearsed, and what the replicas make of the same examples.

    Args:
        model: See `warn_of_differences`.
        step: See `warn_of_differences`.
        batch: See `warn_of_differences`.
        how_many: How many examples of the batch.

    Raises:
        FloatingPointError: A few are not: on one device their gradients are NaN as well, or zero.
    """

    def __init__(self, model, step: Callable, batch, *, how_many: few_examples.HowMany):
        self._model, self._strategy = model, model.distribute_strategy
        self._num_replicas = self._strategy.num_replicas_in_sync
        self._tolerance = tolerances.of_gradients(model)
        self._tolerance_of_results = tolerances.of_results(model)
        if how_many == "one":  # Statistics of so few round more, and what bends differs by much.
            self._tolerance = max(self._tolerance, tolerances.ROUGH)
            self._tolerance_of_results = max(self._tolerance_of_results, tolerances.ROUGH)
        self._num_examples = batches.num_examples(batch)
        # As the step that counts: a gradient of the user's own, which clips, sees what is weighed.
        self._weighs_loss = custom_parts.is_original_step(step)
        self._logs = rehearsed_logs.RehearsedLogs(model)
        self._states = own_attributes.states_of(model)
        if not peers.are_alike(self._strategy, str([name for name, _ in self._states])):
            self._states = []  # A worker may keep something for itself.
        with dry_runs.failing_together(self._strategy):
            self._step = rehearsed = rehearsed_step.of(
                model, step, batch, self._logs, how_many=how_many
            )
            self._whole = dry_runs.rehearse_whole(
                model, rehearsed.whole, rehearsed.batch, rehearsed.touched
            )
            # In a graph it is the trace that does so, and it does on one device.
            self._counted = self._whole.counted if model.run_eagerly else []
            if how_many in few_examples.TOO_FEW and not _says_something(self._whole):
                raise FloatingPointError("The gradients of a few examples are NaN, or all zero.")
        # The step may have made some.
        self._weights = [(each.path, each.value) for each in model.trainable_variables]

    @property
    def has_counted(self) -> bool:
        """Whether each replica would change for itself what one device changes once in a step."""
        return bool(self._counted)

    def try_parts(self) -> None:
        """Runs the step with the parts of this worker alone; fails on all workers where it does."""
        with dry_runs.failing_together(self._strategy):
            dry_runs.try_parts(self._model, self._step.alone, self._step.batch)

    def of_parts_or_whole_losses(self) -> tuple[_Parts, GradientDifference | None]:
        """Compares with the examples divided, and with compiled losses of all; see `compared`."""
        own_losses = self._whole.own_losses
        tolerance = self._tolerance_of_results
        return compiled_losses.compared(
            *(self._model, self._compare, own_losses, tolerance, self._num_examples)
        )

    def finds_nothing_if_repeated(self) -> bool:
        """Whether all examples on every replica give what one device gives."""

        def compare() -> tuple[_Parts, bool]:
            parts, difference = self._compare(batches.whole_for_each)
            return parts, bool(difference) or assignments.are_different(parts.spreads)

        return dry_runs.finds_nothing(self._strategy, compare)

    def _compare(
        self, divide: Callable = batches.shares_of
    ) -> tuple[_Parts, GradientDifference | None]:
        noted = [value for _, value in (*self._weights, *self._states)]
        spreads: list = []
        with self._logs.watched():
            rehearsed = rehearsed_run.rehearse(
                self._strategy,
                functools.partial(assignments.note_spreads, self._step.part, noted, spreads),
                divide(self._step.batch, self._strategy),
                is_whole=False,
                weighs_loss=self._weighs_loss,
                take_own=functools.partial(own_attributes.Snapshot, self._model),
            )
        difference = compare.gradients(
            *self._whole.updates,
            rehearsed.updates[0],
            tolerance=self._tolerance,
            num_replicas=self._num_replicas,
        )
        if self._is_rounding(difference, rehearsed, divide):
            difference = None
        return _Parts(rehearsed=rehearsed, spreads=spreads[0]), difference

    def _is_rounding(self, found: GradientDifference | None, rehearsed, divide: Callable) -> bool:
        """Whether a small difference is another one where the weights are others nearby."""
        is_small = found is not None and found.size <= tolerances.ROUGH
        if not peers.any_of(self._strategy, is_small):
            return False
        variable = found.variable if found else ""
        nearby = [
            self._difference_nearby(variable, divide, seed) for seed in tolerances.PERTURBATIONS
        ]
        difference = compare.gradient_of(self._whole.updates[0], rehearsed.updates[0], variable)
        return is_small and not tolerances.is_computed(difference, nearby)

    def _difference_nearby(self, variable: str, divide: Callable, seed: int) -> np.ndarray:
        step, batch = self._step.nearby(seed), self._step.batch
        whole = dry_runs.rehearse_whole(self._model, step, batch, batch)
        shared = rehearsed_run.rehearse(
            self._strategy,
            step,
            divide(batch, self._strategy),
            is_whole=False,
            weighs_loss=self._weighs_loss,
            take_own=functools.partial(own_attributes.Snapshot, self._model),
        )
        return compare.gradient_of(whole.updates[0], shared.updates[0], variable)

    def describe_logs(self) -> list[str]:
        """Returns in words what the step of the last comparison returns that is not the same."""
        if not self._step.has_logs:
            return []
        tolerance = self._tolerance_of_results
        return self._logs.describe(self._num_replicas, tolerance)

    def describe(self, parts: _Parts, difference: GradientDifference | None) -> list[str]:
        """Returns in words what is not the same of gradients, weights and states."""
        spread = assignments.describe_spreads(
            self._model, self._weights, self._states, parts.spreads, self._num_replicas
        )
        counted = [_describe_counted(self._counted, self._num_replicas)] * self.has_counted
        spread = [*counted, *spread]
        if difference is None:
            return spread
        asks = self._whole.asks_for_number
        return [words.of_gradient(difference, self._num_replicas, asks_for_number=asks), *spread]


def _says_something(whole: rehearsed_run.Rehearsed) -> bool:
    """Whether the gradients of a whole batch are finite, and not all zero."""
    updates, _ = whole.updates
    found = [each for _, gradients in updates for each in gradients if each is not None]
    return not found or (_are_finite(found) and any(map(np.any, _arrays_of(found))))


def _are_finite(tensors: list) -> bool:
    return all(np.isfinite(each).all() for each in _arrays_of(tensors))


def _arrays_of(tensors: list) -> list[np.ndarray]:
    return [np.asarray(tf.convert_to_tensor(each), "float64") for each in tensors]


def _describe_counted(names: list[str], num_replicas: int) -> str:
    return (
        f"With `run_eagerly=True`, each of {num_replicas} replicas changes {short_list(names, 3)} "
        "for itself, and with its part of a batch; one device does so once for the whole batch. "
        "Keep numbers in weights, as `add_weight` makes them, or count with "
        "`self.optimizer.iterations`."
    )
