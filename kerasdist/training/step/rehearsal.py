"""The first step, rehearsed: is its gradient the one that the whole batch gives on one device?

On several replicas a loss counts as a mean over its examples. A program that sums, divides by
something of its own or compares examples with each other means something else, and nothing in its
code says so. Before the first step that is not all Keras', some examples go through it twice,
operation by operation: all of them on every replica, and divided over the replicas. Random numbers
are made alike, and nothing that is assigned stays, no variable and no attribute. Where the
gradients differ, and by more than rounding explains, a warning says so. Where nothing but the loss
is the user's own, the net predicts once, and the loss alone goes through it.

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

import contextlib
import dataclasses
import functools
import io
import logging
import warnings
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_adapter, keras_stock
from kerasdist.training import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.step import (
    assignments,
    batch_statistics,
    few_examples,
    global_loss,
    gradient_aggregation,
    gradient_difference,
    graph_errors,
    own_attributes,
    randomness,
    rehearsed_logs,
    replica_run,
    replica_step,
    whole_losses,
    whole_metrics,
)
from kerasdist.training.step.gradient_difference import GradientDifference

# Per replica. Enough for masks and weights to differ; a step of so few costs little, and twice as
# many predictions do, where those are enough.
_EXAMPLES, _EXAMPLES_OF_LOSS = 4, 8
# Of a gradient's norm: far above rounding, far below what a wrong divisor makes.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-3, 5e-2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Runs:
    """What is rehearsed.

    Attributes:
        whole: Called with all of `batch`, and with all of `touched`.
        part: Called with the share of a replica.
        alone: The same without a message to the other replicas.
        batch: Some of the examples.
        touched: The same, different by rounding.
        have_logs: Whether these run the step, with what it returns.
    """

    whole: Callable
    part: Callable
    alone: Callable
    batch: Any
    touched: Any
    have_logs: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """What came of the examples, divided over the replicas.

    Attributes:
        rehearsed: The updates.
        spreads: Of `assignments.note_spreads`.
    """

    rehearsed: replica_run.Rehearsed
    spreads: list


def is_due(model) -> bool:
    """Whether a step of `model` can mean something else than Keras' own do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.keeps_own_pace(strategy):
        return False
    return (
        keras_stock.has_own_parts(model)
        or not keras_stock.has_stock_losses(model)
        # Beside another loss, of another shape, which Keras adds to the number of each example.
        or keras_stock.has_unreduced_losses(model)
    )


def warn_of_differences(
    model,
    step: Callable,
    batch,
    *,
    is_late: bool = False,
    may_repeat: bool = False,
    differing: str | None = None,
) -> bool:
    """Rehearses a step and warns where its gradient is not that of the whole batch.

    Args:
        model: A compiled model whose variables exist.
        step: Its train_step, called with the data of a replica.
        batch: The first global batch: tensors [examples, ...].
        is_late: Whether steps were made before, without a rehearsal.
        may_repeat: Whether every replica can have the whole batch.
        differing: How its tensors differ in the length of their first axis; None where they do not.

    Returns:
        Whether every replica is to have it, because only then the step does what it does on one
        device.
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    saw_one = whole_losses.may_see_all(model)
    rehearse = functools.partial(
        *(_describe_differences, model, step, batch), may_repeat=may_repeat, differing=differing
    )
    try:
        texts, is_repeated = few_examples.with_enough(rehearse)
    except Exception as error:  # Of the program, which may mean no other batch than its own.
        warnings.warn(
            f"Could not check that {num_replicas} replicas give the gradient of one device: "
            f"{graph_errors.in_a_line(error)}",
            stacklevel=2,
        )
        return False
    sees_all = saw_one and not whole_losses.may_see_all(model)
    if sees_all and is_late:
        texts = [_describe_late(model), *texts]
    if is_late and not _are_finite(model.trainable_variables):
        texts = [*texts, _describe_not_finite(num_replicas)]
    for text in texts:
        warnings.warn(text, stacklevel=2)
    return is_repeated


def tolerance_of(model) -> float:
    """Returns how much of the largest number may be rounding, by the dtype of `model`."""
    is_short = model.compute_dtype in ("float16", "bfloat16")
    return _TOLERANCE_OF_16_BITS if is_short else _TOLERANCE


def _describe_differences(
    model, step: Callable, batch, *, may_repeat: bool, differing: str | None, are_few: bool
) -> tuple[list[str], bool]:
    """Returns in words where a step over the replicas differs from that of the whole batch.

    Args:
        model: See `warn_of_differences`.
        step: See `warn_of_differences`.
        batch: See `warn_of_differences`.
        may_repeat: See `warn_of_differences`.
        differing: See `warn_of_differences`.
        are_few: Whether a few examples of the batch are enough.

    Returns:
        The words, and whether every replica is to have the whole batch.

    Raises:
        FloatingPointError: A few are not: on one device their gradients are NaN as well, or zero.
    """
    strategy = model.distribute_strategy
    with (
        without_traces(model),
        batch_statistics.synchronized(model),  # A difference that has a warning of its own.
        whole_metrics.updated_with_all(model),
    ):
        comparison = _Comparison(model, step, batch, are_few=are_few)
        try:
            comparison.try_parts()
            parts, difference = comparison.of_parts_or_whole_losses()
        except Exception as error:
            if are_few or not may_repeat or not comparison.finds_nothing_if_repeated():
                raise
            failure = graph_errors.describe_failure(error, model, step, differing)
            return [f"{failure} {replica_run.describe_repeated(strategy)}"], True
        of_logs = [] if difference else comparison.describe_logs()  # What follows is no news.
        is_other = bool(difference) or assignments.are_different(parts.spreads)
        is_repeated = may_repeat and peers.any_of(strategy, is_other)
        is_repeated = is_repeated and comparison.finds_nothing_if_repeated()
    texts = comparison.describe(parts, difference)
    if not is_repeated:
        return [*of_logs, *texts], False
    return [*texts[:-1], f"{texts[-1]} {replica_run.describe_repeated(strategy)}"], True


class _Comparison:
    """A step of one device, rehearsed, and what the replicas make of the same examples.

    Args:
        model: See `warn_of_differences`.
        step: See `warn_of_differences`.
        batch: See `warn_of_differences`.
        are_few: Whether a few examples of the batch are enough.

    Raises:
        FloatingPointError: A few are not: on one device their gradients are NaN as well, or zero.
    """

    def __init__(self, model, step: Callable, batch, *, are_few: bool):
        self._model, self._strategy = model, model.distribute_strategy
        self._num_replicas = self._strategy.num_replicas_in_sync
        self._tolerance = tolerance_of(model)
        # As the step that counts: a gradient of the user's own, which clips, sees what is weighed.
        self._weighs_loss = keras_stock.is_stock_step(step)
        self._logs = rehearsed_logs.RehearsedLogs(model)
        self._states = own_attributes.states_of(model)
        if not peers.are_alike(self._strategy, str([name for name, _ in self._states])):
            self._states = []  # A worker may keep something for itself.
        with failing_together(self._strategy):
            self._runs = runs = _runs(model, step, batch, self._logs, are_few=are_few)
            self._whole = rehearse_whole(self._strategy, runs.whole, runs.batch, runs.touched)
            if are_few and not _says_something(self._whole):
                raise FloatingPointError("The gradients of a few examples are NaN, or all zero.")
        # The step may have made some.
        self._weights = [(each.path, each.value) for each in model.trainable_variables]

    def try_parts(self) -> None:
        """Runs the step with the parts of this worker alone; fails on all workers where it does."""
        with failing_together(self._strategy):
            try_parts(self._strategy, self._runs.alone, self._runs.batch)

    def of_parts_or_whole_losses(self) -> tuple[_Parts, GradientDifference | None]:
        """Compares with the examples divided, and with compiled losses of all; see `compared`."""
        own_losses = self._whole.own_losses
        return whole_losses.compared(self._model, self._compare, own_losses, self._tolerance)

    def finds_nothing_if_repeated(self) -> bool:
        """Whether all examples on every replica give what one device gives."""

        def compare() -> tuple[_Parts, bool]:
            parts, difference = self._compare(batches.whole_for_each)
            return parts, bool(difference) or assignments.are_different(parts.spreads)

        return finds_nothing(self._strategy, compare)

    def _compare(
        self, divide: Callable = batches.shares_of
    ) -> tuple[_Parts, GradientDifference | None]:
        noted = [value for _, value in (*self._weights, *self._states)]
        spreads: list = []
        with self._logs.watched():
            rehearsed = replica_run.rehearse(
                self._strategy,
                functools.partial(assignments.note_spreads, self._runs.part, noted, spreads),
                divide(self._runs.batch, self._strategy),
                is_whole=False,
                weighs_loss=self._weighs_loss,
                keep_own=functools.partial(own_attributes.kept, self._model),
            )
        difference = gradient_difference.find(
            self._whole, rehearsed, self._tolerance, self._num_replicas
        )
        return _Parts(rehearsed=rehearsed, spreads=spreads[0]), difference

    def describe_logs(self) -> list[str]:
        """Returns in words what the step of the last comparison returns that is not the same."""
        if not self._runs.have_logs:
            return []
        return self._logs.describe(
            self._num_replicas, self._tolerance, gradient_difference.ROUNDING
        )

    def describe(self, parts: _Parts, difference: GradientDifference | None) -> list[str]:
        """Returns in words what is not the same of gradients, weights and states."""
        spread = assignments.describe_spreads(
            self._model, self._weights, self._states, parts.spreads, self._num_replicas
        )
        if difference is None:
            return spread
        return [gradient_difference.describe(difference, self._num_replicas), *spread]


def _runs(model, step: Callable, batch, logs, *, are_few: bool) -> _Runs:
    """Returns what to rehearse: a step, or its loss where nothing else can differ.

    Args:
        model: See `warn_of_differences`.
        step: See `warn_of_differences`.
        batch: See `warn_of_differences`.
        logs: `RehearsedLogs` of the model.
        are_few: Whether a few examples of the batch are enough.
    """

    def some(most: int):
        num_replicas = model.distribute_strategy.num_replicas_in_sync
        return few_examples.some_of(batch, most, num_replicas) if are_few else batch

    examples = some(_EXAMPLES_OF_LOSS)
    predictions = _predict(model, examples) if keras_stock.is_loss_all_own(model) else None
    if predictions is not None:  # Much less to compute, and no net to multiply what rounds.
        run = functools.partial(_differentiate_loss, model, predictions)
        data = (examples, tf.range(batches.num_examples(examples)))
        return _Runs(whole=run, part=run, alone=run, batch=data, touched=data, have_logs=False)
    examples = some(_EXAMPLES)
    nearly = few_examples.touched(examples)
    return _Runs(
        whole=functools.partial(logs.run_whole, step, nearly),
        part=functools.partial(logs.run_part, step),
        alone=step,
        batch=examples,
        touched=nearly,
        have_logs=True,
    )


def _predict(model, batch):
    """Returns what `model` makes of the inputs; None where its examples cannot be taken apart."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    with keras.StatelessScope():  # Nothing assigned stays.
        predictions = model(x, training=False)
    is_divisible = all(
        tf.is_tensor(each)
        and each.dtype.is_floating
        and each.shape.rank
        and each.shape[0] == batches.num_examples(batch)
        and keras_adapter.mask_of(each) is None
        for each in tf.nest.flatten(predictions)
    )
    return predictions if is_divisible else None


def _differentiate_loss(model, predictions, data):
    """Stands for Keras' train_step where only the loss can differ: the gradient by predictions.

    Args:
        model: A model of which the loss alone is not Keras'.
        predictions: Of the whole batch.
        data: The share of a replica, and its positions in the whole batch [examples].
    """
    (x, y, sample_weight), positions = keras.utils.unpack_x_y_sample_weight(data[0]), data[1]
    replica: Any = replica_step.current()
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        own = tf.nest.map_structure(lambda each: tf.gather(each, positions), predictions)
        loss = keras_adapter.compute_loss(model, x, y, own, sample_weight)
        loss = global_loss.weigh(loss, replica)  # As `scale_loss` does.
    leaves = tf.nest.flatten(predictions)
    paths = ["predictions"] * len(leaves) + [variable.path for variable in variables]
    gradients = tape.gradient(loss, [*leaves, *variables])
    gradient_aggregation.keep_rehearsed(paths, gradients, replica)


def rehearse_whole(strategy, step, batch, touched) -> replica_run.Rehearsed:
    """Returns what a whole batch does, and what one does that differs from it by rounding."""
    size = batches.num_examples(batch)
    copies = [batch, touched] * len(peers.local_replicas(strategy))

    def run(data):
        shares = batches.Shares(
            data=tuple(data), counts=[size] * len(data), total=size, may_be_empty=False
        )
        return replica_run.rehearse(strategy, step, shares, is_whole=True)

    count = len(copies) // 2
    # On workers of one replica each in two runs, which all of them make.
    runs = [run(copies[:count])] if count > 1 else [run(copies[:1]), run(copies[1:])]
    updates = [each for run_ in runs for each in run_.updates]
    return dataclasses.replace(runs[0], updates=updates[:2])


@contextlib.contextmanager
def failing_together(strategy) -> Generator[None]:
    """Lets all workers fail where one does: none goes on to messages that it would wait for.

    What is inside sends no message.

    Raises:
        Exception: What was raised inside, on this worker or another one.
    """
    failure = None
    try:
        yield
    except Exception as error:  # Of the program.
        failure = error
    if peers.any_of(strategy, failure is not None):
        raise failure or RuntimeError("The step fails on another worker.")


def try_parts(strategy, step: Callable, batch) -> None:
    """Runs a step with this worker's parts of a batch alone, to see whether it fails with them."""
    if peers.count(strategy) > 1:
        replica_run.rehearse(strategy, step, batches.shares_of(batch, strategy), is_whole=True)


@contextlib.contextmanager
def without_traces(model) -> Generator[None]:
    """Runs what is inside operation by operation, and leaves no trace of it."""
    logger = tf.get_logger()
    level, runs_eagerly = logger.level, tf.config.functions_run_eagerly()
    logger.setLevel(logging.ERROR)  # "Using MirroredStrategy eagerly has significant overhead".
    # What is traced here would be found again in the steps that count.
    tf.config.run_functions_eagerly(True)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            tf.summary.record_if(False),
            own_attributes.kept(model),
            randomness.generators_kept(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        tf.config.run_functions_eagerly(runs_eagerly)
        logger.setLevel(level)


def _says_something(whole: replica_run.Rehearsed) -> bool:
    """Whether the gradients of a whole batch are finite, and not all zero."""
    updates, _ = whole.updates
    found = [each for _, gradients in updates for each in gradients if each is not None]
    return not found or (_are_finite(found) and any(map(np.any, _arrays_of(found))))


def _are_finite(tensors: list) -> bool:
    return all(np.isfinite(each).all() for each in _arrays_of(tensors))


def _arrays_of(tensors: list) -> list[np.ndarray]:
    return [np.asarray(tf.convert_to_tensor(each), "float64") for each in tensors]


def _describe_not_finite(num_replicas: int) -> str:
    return (
        f"Could not check that {num_replicas} replicas give the gradient of one device: the steps "
        "that made the weights, before it could be checked, have left some that are not finite. A "
        "mean over a part of the examples, such as those of a mask, may divide by 0 on a replica "
        "that has none of them; `kerasdist.global_mean(values, weights=mask)` does not. Call the "
        "model with a batch before `fit`, as in `model(x[:1])`, to have it checked."
    )


def finds_nothing(strategy, compare: Callable[[], tuple]) -> bool:
    """Whether a comparison finds no difference, its second result, on any worker; it may fail."""
    try:
        found = bool(compare()[1])
    except Exception:  # Of the program. What was found before is said.
        found = True
    return not peers.any_of(strategy, found)


def _describe_late(model) -> str:
    return (
        f"The loss of the model '{model.name}' is computed from the whole batch from now on. In "
        "the steps that made its weights, before it could be checked, each replica computed it "
        "from its own examples: the weights are other ones than on one device. Call the model with "
        "a batch before `fit`, as in `model(x[:1])`."
    )
