"""Says what limits a training: the input, the messages, the program, or a slow worker."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from kerasdist.training.report.rate_meter import Rate
from kerasdist.training.report.worker_share import Pace, WorkerShare

# If workers wait for one of them for this share of the time, that one is slow.
_MUCH_WAITING = 0.25
# A worker that makes fewer steps than this share of the others' is slow.
_FEW_STEPS = 0.6

_NAMES = {
    "compute": "computation",
    "input": "input",
    "exchange": "communication",
    "idle": "between the steps",
}
_SENTENCES = {
    "compute": "Bottleneck: computation, {share} of {step}",
    "input": "Bottleneck: waiting for the next batch, {share} of {step}",
    "exchange": "Bottleneck: messages between workers, {share} of {step}",
    "idle": "Bottleneck: Python code between steps (callbacks, logs), {share} of {step}",
}
_FIRST = {
    "compute": "Try larger batches, mixed precision or more replicas first.",
    "input": "Read ahead (`prefetch`), read in parallel (`num_parallel_calls`), or `cache`.",
    "exchange": "Try larger batches per worker, fewer workers or a faster network first.",
    "idle": (
        "Raise `steps_per_execution` in `compile`, and look at callbacks that act on each batch."
    ),
}
_OF_SERVED = {
    "idle": "Bottleneck: the chief, workers wait {share} of the time for their next steps",
    "exchange": "Bottleneck: messages to parameter servers, {share} of the workers' time",
}
_NAMES_OF_SERVED = _NAMES | {"idle": "waiting for the chief"}
_FIRST_OF_SERVED = {
    "idle": "Raise `steps_per_execution` in `compile`, or use fewer workers.",
    "exchange": "Try larger batches or more parameter servers first.",
}
_OF_UPDATES = {
    "exchange": "Bottleneck: messages to parameter servers, and waiting for them, {share} of {step}"
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """What is said of a pace: the causes by name, and of each a sentence and what to try first."""

    names: Mapping[str, str]
    sentences: Mapping[str, str]
    firsts: Mapping[str, str]


_WORDS = {
    Pace.PEERS: _Words(names=_NAMES, sentences=_SENTENCES, firsts=_FIRST),
    Pace.SERVED: _Words(
        names=_NAMES_OF_SERVED,
        sentences=_SENTENCES | _OF_SERVED,
        firsts=_FIRST | _FIRST_OF_SERVED,
    ),
    Pace.UPDATES: _Words(
        names=_NAMES | {"exchange": "communication and waiting for others"},
        sentences=_SENTENCES | _OF_UPDATES,
        firsts=_FIRST | {"exchange": _FIRST_OF_SERVED["exchange"]},
    ),
}


class Limit:
    """What limited a run, from the rates of its parts.

    Args:
        pace: See `limit_of`.
    """

    def __init__(self, pace: Pace):
        self._pace = pace
        self._rates: list[Rate] = []

    def add(self, rate: Rate | None) -> None:
        """Adds the rate of another part; None for one without steps."""
        if rate is not None:
            self._rates.append(rate)

    def sentence(self) -> str | None:
        """Returns what `limit_of` says; None if there was no step, or nothing is known."""
        if not self._rates:
            return None
        workers = self._rates[0].workers
        if not workers:
            return None
        secs = [rate.secs for rate in self._rates]
        ms_per_step = 1e3 * sum(secs) / sum(rate.num_steps for rate in self._rates)
        numbers = np.array([[each.numbers for each in rate.workers] for rate in self._rates])
        means = np.tensordot(secs, numbers, axes=1) / max(sum(secs), 1e-9)
        shares = [WorkerShare(each.name, *row) for each, row in zip(workers, means, strict=True)]
        return limit_of(shares, ms_per_step=ms_per_step, pace=self._pace)


def limit_of(workers: Sequence[WorkerShare], *, ms_per_step: float, pace: Pace = Pace.PEERS) -> str:
    """Returns what limits a training, with numbers, and what to change first.

    Args:
        workers: At least one.
        ms_per_step: Milliseconds of a step.
        pace: Whom the workers wait for.
    """
    late = None if pace is Pace.PEERS else _with_few_steps(workers)
    awaited, seen = (None, "") if pace is Pace.SERVED else _awaited(workers)
    if late is not None and pace is Pace.UPDATES and (late.dropped or late is not awaited):
        rest = [each for each in workers if each is not late]
        limit = limit_of(rest, ms_per_step=ms_per_step, pace=pace)
        return f"{_describe_late(late, workers)} {limit}"
    if late is not None:
        awaited = late
        seen = _pace_seen(late, workers, "steps" if pace is Pace.SERVED else "batches")
    if awaited is not None:
        return f"Bottleneck: {awaited.name}, which {seen}. {_where_time_went(awaited, pace)}"
    words = _WORDS[pace]
    if pace is Pace.SERVED:
        shares = {cause: _mean(workers, cause) for cause in _NAMES}
    else:
        # The one that waits least for the others: what it waits for is not another worker.
        shares = _shares_of(min(workers, key=lambda each: each.exchange))
    cause = max(shares, key=lambda cause: shares[cause])
    sentence = words.sentences[cause].format(
        share=f"{shares[cause]:.0%}", step=f"a {ms_per_step:.1f} ms step"
    )
    return f"{sentence} ({_others(shares, cause, words.names)}). {words.firsts[cause]}"


def _with_few_steps(workers: Sequence[WorkerShare]) -> WorkerShare | None:
    """Returns the worker that makes far fewer steps than the others."""
    slow = min(workers, key=lambda each: each.steps_per_second)
    others = [each for each in workers if each is not slow]
    if not others or slow.steps_per_second > _FEW_STEPS * _mean(others, "steps_per_second"):
        return None
    return slow


def _describe_late(late: WorkerShare, workers: Sequence[WorkerShare]) -> str:
    """Says of a worker what others, which wait for fewer than all, need not care about."""
    seen = _pace_seen(late, workers, "batches")
    dropped = ""
    if late.dropped:
        dropped = f" {late.dropped:.0%} of its batches were dropped, and computed again."
    where = _where_time_went(late, Pace.UPDATES)
    return f"Late: {late.name}, which {seen}; updates did not wait for it.{dropped} {where}"


def _pace_seen(slow: WorkerShare, workers: Sequence[WorkerShare], unit: str) -> str:
    others = _mean([each for each in workers if each is not slow], "steps_per_second")
    rest = f"the others {others:.1f} each" if len(workers) > 2 else f"the other {others:.1f}"
    return f"makes {slow.steps_per_second:.1f} {unit}/s, {rest}"


def _awaited(workers: Sequence[WorkerShare]) -> tuple[WorkerShare | None, str]:
    """Returns the worker for which all others wait, and what that is seen by."""
    slow = min(workers, key=lambda each: each.exchange)
    others = [each for each in workers if each is not slow]
    waiting = _mean(others, "exchange") - slow.exchange if others else 0.0
    if waiting < _MUCH_WAITING:
        return None, ""
    rest = "others" if len(workers) > 2 else "other"
    return slow, f"keeps the {rest} waiting {waiting:.0%} of the time"


def _where_time_went(slow: WorkerShare, pace: Pace) -> str:
    shares, names = _shares_of(slow), _WORDS[pace].names
    cause = max(shares, key=lambda cause: shares[cause])
    return (
        f"Of its own time {shares[cause]:.0%} is {names[cause]} "
        f"({_others(shares, cause, names)}). Look at that machine first: what else runs there, and "
        "how it reads its data."
    )


def _shares_of(worker: WorkerShare) -> dict[str, float]:
    return {cause: getattr(worker, cause) for cause in _NAMES}


def _others(shares: Mapping[str, float], cause: str, names: Mapping[str, str]) -> str:
    return ", ".join(
        f"{names[each]} {share:.0%}" for each, share in shares.items() if each != cause
    )


def _mean(workers: Sequence[WorkerShare], cause: str) -> float:
    return sum(getattr(each, cause) for each in workers) / len(workers)
