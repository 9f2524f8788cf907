"""The trial of an update: do several batches give what one device gives for them joined?

The chief computes a few examples of the first batches, joined and in parts, operation by operation,
and nothing that is assigned stays (`trial`). The mean of the parts' gradients by their divisors
must be that of all examples, and so the means of what a step returns, and the sums of what its
metrics count.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter, custom_parts, keras_layers
from kerasdist.support.replaced_method import method_replaced
from kerasdist.support.text import short_list
from kerasdist.training.context import deployment
from kerasdist.training.data import batches
from kerasdist.training.gradients import custom_apply
from kerasdist.training.losses.metric_results import MetricResults
from kerasdist.training.replica import replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import OneDevice
from kerasdist.training.step.step_logs import name_of
from kerasdist.training.synchronous_servers import staged_update
from kerasdist.training.synchronous_servers.inseparable import InseparableError
from kerasdist.training.trial import choose, compare, losses, run, undo, undone_run
from kerasdist.training.trial.choose import Found, Question
from kerasdist.training.trial.compare import GradientDifference, LogDifferences
from kerasdist.training.trial.examples import HowMany
from kerasdist.training.trial.fit import TrialOfFit, whole_step
from kerasdist.training.trial.outcome import Outcome
from kerasdist.training.trial.run import Mode, Tried

# What three batches share, any number does.
_MOST_PARTS = 3
_WAY_OUT = (
    "Where a loss is a mean over the examples of its batch, without a divisor of its own such as "
    "the sum of a mask, and compares no examples with each other, all workers compute."
)


def check(model: keras.Model, step: Callable, batch: Any) -> None:
    """Tries a step with examples of some batches.

    Args:
        model: A compiled model whose variables exist.
        step: Its train_step.
        batch: The examples.

    Raises:
        InseparableError: An update of several batches is not that of one device; or it cannot be
            tried.
    """
    strategy = model.distribute_strategy
    question = Question(model=model, step=step, batch=batch, may_be_whole=True)
    try:
        with custom_apply.routed(model), coordinator_adapter.traced_for_workers(strategy):
            choice = choose.choose(TrialOfUpdate, question)
    except Exception as error:  # The program may mean no other batch than its own.
        text = f"a trial of several batches failed with {type(error).__name__}"
        raise InseparableError(text, _WAY_OUT) from error
    if choice.mode is Mode.WHOLE:
        raise InseparableError(choice.texts[0].removesuffix("."), _WAY_OUT)


class TrialOfUpdate(TrialOfFit):
    """A train_step of synchronous workers over parameter servers.

    Args: those of `Trial`.
    """

    modes = (Mode.DIVIDED,)

    @staticmethod
    def num_replicas_of(strategy: Any) -> int:
        number = deployment.remote_workers(strategy).num_to_aggregate
        assert number is not None
        return min(number, _MOST_PARTS)

    @staticmethod
    def any_of(strategy: Any, is_so: bool) -> bool:
        return is_so  # The chief alone tries.

    @staticmethod
    @contextlib.contextmanager
    def around(model: keras.Model) -> Generator[None]:
        with undo.without_traces(model), contextlib.ExitStack() as stack:
            # The statistics of each batch are its own, as docs say: a difference that is no news.
            for layer in keras_layers.batch_normalizations_of(model):
                stack.enter_context(method_replaced(layer, "call", _with_moving_statistics))
            yield

    def try_parts(self) -> None:
        """Does nothing: `run` is the first to run parts."""

    def made_of(self, question: Question, how_many: HowMany) -> Tried:
        if not custom_parts.custom_metrics_of(self.model):
            return super().made_of(question, how_many)
        tried = whole_step(question, how_many, self.num_replicas)
        return dataclasses.replace(tried, sums_of=_all_metrics_of)

    def run(self, tried: Tried, mode: Mode, truth: Outcome, assigned: list) -> Outcome:
        return truth if mode is Mode.WHOLE else _of_parts(tried, self.num_replicas)

    def compare(self, mode: Mode) -> Found:
        found = super().compare(mode)
        if found or mode is Mode.WHOLE:
            return found
        if not losses.are_means(self.truth.losses, self.tolerance, self.question.batch):
            return Found(computed="a loss is no mean over the examples", outcome=found.outcome)
        return dataclasses.replace(found, computed=self.compare_logs(found.outcome) or None)

    def describe(self, found: Found, mode: Mode) -> list[str]:
        number = self.num_replicas
        if isinstance(found.computed, GradientDifference):
            size = f"{found.computed.size:.2g} of its norm"
            return [
                f"the mean of the gradients of {number} batches is not that of their examples "
                f"together: that of '{found.computed.variable}' differs by {size}"
            ]
        if isinstance(found.computed, LogDifferences):
            return [_of_logs(found.computed)]
        return [found.computed] if found.computed else []


def _of_logs(found: LogDifferences) -> str:
    paths = [path for path, *_ in (*found.shapes, *found.numbers)]
    if paths:
        names = short_list((f"'{name_of(path)}'" for path in paths), 3)
        return f"what the step returns as {names} is no mean over its batches"
    names = short_list(map(repr, found.metrics), 3)
    return f"what the metric {names} counts is no sum over its batches"


class _Batch(OneDevice):
    """One of the batches of an update, on one device."""

    def weigh(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def weight_of_mean(self) -> Any:
        return self.share


class _AskingDelivery(LocalDelivery):
    needs_divisors = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _OfPart:
    """What came of a part of the examples.

    Attributes:
        outcome: As of one device.
        returned: What the step has returned.
        weight: What its loss was divided by.
        num_examples: Of the part.
    """

    outcome: Outcome
    returned: Any
    weight: float
    num_examples: int


def _of_parts(tried: Tried, number: int) -> Outcome:
    """Returns what an update is made of whose batches are parts of the examples."""
    results = MetricResults(tried.model)
    total = batches.num_examples(tried.batch)
    sizes = batches.counts_of(total, number)
    pairs = zip(batches.split(tried.batch, number), sizes, strict=True)
    with results.watched():
        parts = [_of_part(tried, part, size, total) for part, size in pairs if size]
    first, returned = parts[0].outcome, parts[-1].returned
    return Outcome(
        updates=[
            (paths, [_mean(each, _weights(parts)) for each in zip(*gradients, strict=True)])
            for paths, gradients in _aligned(parts)
        ],
        logs={
            path: _mean([each.outcome.logs[path] for each in parts], _sizes(parts))
            for path in first.logs
        },
        shapes={path: each.shape for path, each in first.logs.items()},
        results=frozenset(results.among(returned)) if isinstance(returned, dict) else frozenset(),
        counts={
            key: [
                sum(each)
                for each in zip(*(part.outcome.counts[key] for part in parts), strict=True)
            ]
            for key in first.counts
        },
    )


def _of_part(tried: Tried, part: Any, size: int, total: int) -> _OfPart:
    read: dict[str, Any] = {"returned": None, "logs": {}, "counts": {}}

    def step(data: Any) -> None:
        if tried.is_read:
            run.set_counts_to_zero(tried)
            read["returned"] = tried.step(data)
            read["logs"], read["counts"] = run.numbers_in(read["returned"]), run.counts_of(tried)
        else:
            tried.step(data)
        replica: Any = replicas.current()
        read["weight"] = float(staged_update.weight_of(replica))

    (outcome,) = undone_run.run(
        tried.model.distribute_strategy,
        step,
        batches.Shares(data=(part,), counts=[size], total=size, may_be_empty=False),
        is_whole=True,
        take_own=tried.take_attributes,
        make_whole=functools.partial(_batch, size / total),
    )
    outcome = dataclasses.replace(outcome, logs=read["logs"], counts=read["counts"])
    return _OfPart(
        outcome=outcome, returned=read["returned"], weight=read["weight"], num_examples=size
    )


def _batch(share: float, /, **arguments: Any) -> _Batch:
    arguments.update(share=share, delivery=_AskingDelivery())
    return _Batch(**arguments)


def _aligned(parts: list[_OfPart]) -> list[tuple[list[str], list[list]]]:
    """Returns for each update the paths of its variables, and the gradients of each part."""
    return [
        (updates[0][0], [gradients for _, gradients in updates])
        for updates in zip(*(part.outcome.updates for part in parts), strict=True)
    ]


def _mean(values: Any, weights: list[float]) -> Any:
    if any(each is None for each in values):
        return None
    arrays = list(map(compare.as_array, values))
    if len({each.shape for each in arrays}) > 1:  # Rows for each example: no number of a batch.
        return arrays[0]
    return np.average(arrays, axis=0, weights=weights)


def _weights(parts: list[_OfPart]) -> list[float]:
    weights = [part.weight for part in parts]
    return weights if sum(weights) > 0 else [1.0] * len(parts)


def _sizes(parts: list[_OfPart]) -> list[float]:
    return [float(part.num_examples) for part in parts]


def _all_metrics_of(model: keras.Model) -> dict[int, keras.metrics.Metric]:
    metrics = custom_parts.metrics_of(model)
    return {
        id(metric): metric
        for metric in metrics
        if metric.variables and not getattr(metric, "metrics", ())
    }


def _with_moving_statistics(call: Callable, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs | {"training": False})
