"""Says what limits a training: the input, the messages, the program, or a slow worker."""

from collections.abc import Mapping, Sequence

import numpy as np

from kerasdist.training.report.rate_meter import Rate
from kerasdist.training.report.worker_share import WorkerShare

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


class Limit:
    """What limited a run, from the rates of its parts.

    Args:
        are_asynchronous: See `limit_of`.
    """

    def __init__(self, *, are_asynchronous: bool):
        self._are_asynchronous = are_asynchronous
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
        return limit_of(shares, ms_per_step=ms_per_step, are_asynchronous=self._are_asynchronous)


def limit_of(
    workers: Sequence[WorkerShare], *, ms_per_step: float, are_asynchronous: bool = False
) -> str:
    """Returns what limits a training, with numbers, and what to change first.

    Args:
        workers: At least one.
        ms_per_step: Milliseconds of a step.
        are_asynchronous: Whether each keeps its own pace, as with parameter servers.
    """
    slow = _slow_worker(workers, are_asynchronous)
    if slow:
        return slow
    if are_asynchronous:
        shares = {cause: _mean(workers, cause) for cause in _NAMES}
        sentences, firsts = _SENTENCES | _OF_SERVED, _FIRST | _FIRST_OF_SERVED
        names = _NAMES_OF_SERVED
    else:
        # The one that waits least for the others: what it waits for is not another worker.
        shares = _shares_of(min(workers, key=lambda each: each.exchange))
        sentences, firsts, names = _SENTENCES, _FIRST, _NAMES
    cause = max(shares, key=lambda cause: shares[cause])
    sentence = sentences[cause].format(
        share=f"{shares[cause]:.0%}", step=f"a {ms_per_step:.1f} ms step"
    )
    return f"{sentence} ({_others(shares, cause, names)}). {firsts[cause]}"


def _slow_worker(workers: Sequence[WorkerShare], are_asynchronous: bool) -> str | None:
    if len(workers) == 1:
        return None
    if are_asynchronous:
        slow = min(workers, key=lambda each: each.steps_per_second)
        others = _mean([each for each in workers if each is not slow], "steps_per_second")
        if slow.steps_per_second > _FEW_STEPS * others:
            return None
        rest = f"the others {others:.1f} each" if len(workers) > 2 else f"the other {others:.1f}"
        seen = f"makes {slow.steps_per_second:.1f} steps/s, {rest}"
    else:
        slow = min(workers, key=lambda each: each.exchange)
        others = _mean([each for each in workers if each is not slow], "exchange")
        if others - slow.exchange < _MUCH_WAITING:
            return None
        rest = "others" if len(workers) > 2 else "other"
        seen = f"keeps the {rest} waiting {others - slow.exchange:.0%} of the time"
    shares, names = _shares_of(slow), _NAMES_OF_SERVED if are_asynchronous else _NAMES
    cause = max(shares, key=lambda cause: shares[cause])
    return (
        f"Bottleneck: {slow.name}, which {seen}. Of its own time {shares[cause]:.0%} is "
        f"{names[cause]} ({_others(shares, cause, names)}). Look at that machine first: "
        "what else runs there, and how it reads its data."
    )


def _shares_of(worker: WorkerShare) -> dict[str, float]:
    return {cause: getattr(worker, cause) for cause in _NAMES}


def _others(shares: Mapping[str, float], cause: str, names: Mapping[str, str]) -> str:
    return ", ".join(
        f"{names[each]} {share:.0%}" for each, share in shares.items() if each != cause
    )


def _mean(workers: Sequence[WorkerShare], cause: str) -> float:
    return sum(getattr(each, cause) for each in workers) / len(workers)
