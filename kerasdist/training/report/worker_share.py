"""Shares of the time of a worker, and their tags in an event file."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kerasdist.training.context import traits


class Pace(enum.Enum):
    """Whom workers wait for."""

    PEERS = "in each step for all others, with whom they sum up gradients"
    SERVED = "for nobody, over parameter servers"
    UPDATES = "over parameter servers for the update that their batches are a part of"


def pace_of(strategy: object) -> Pace:
    """Returns whom the workers of a strategy wait for."""
    if not traits.has_remote_variables(strategy):
        return Pace.PEERS
    return Pace.SERVED if traits.is_async(strategy) else Pace.UPDATES


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerShare:
    """What a worker did in some time.

    Attributes:
        name: Such as "worker 1"; "" if there is only one.
        input: Share of the time spent waiting for batches, from 0 to 1.
        exchange: Share spent on messages, and on waiting for the other workers of a step: summing
            the gradients or, with parameter servers, fetching weights and sending gradients.
        idle: Share between its steps, in callbacks and logs; with asynchronous workers, the time in
            which the chief had nothing for it. 0 on accelerators, where it is unknown.
        steps_per_second: Steps per second; with parameter servers, batches of this worker, also
            those that were dropped.
        examples_per_second: Those of this worker, with parameter servers; otherwise 0.
        staleness: With parameter servers, the mean number of updates that were made while a step
            was computed; otherwise 0.
        dropped: The share of its batches that came too late for their update, which synchronous
            workers over parameter servers compute again; otherwise 0.
    """

    name: str
    input: float
    exchange: float
    idle: float
    steps_per_second: float = 0.0
    examples_per_second: float = 0.0
    staleness: float = 0.0
    dropped: float = 0.0

    NUMBERS: ClassVar = (
        *("input", "exchange", "idle"),
        *("steps_per_second", "examples_per_second", "staleness", "dropped"),
    )

    @property
    def compute(self) -> float:
        """The rest of the time."""
        return max(1.0 - self.input - self.exchange - self.idle, 0.0)

    @property
    def numbers(self) -> list[float]:
        """The values of `NUMBERS`."""
        return [getattr(self, number) for number in self.NUMBERS]


# Tags of what every deployment has, by field.
_SHARES = {
    "input": "input_wait_share",
    "exchange": "communication_share",
    "idle": "between_steps_share",
}
# Tags of what only workers of parameter servers have, each for itself.
_OWN = {
    "steps_per_second": "steps_per_second",
    "examples_per_second": "examples_per_second",
    "staleness": "staleness",
}
# And of these, only synchronous ones.
_OF_UPDATES = {"dropped": "dropped_share"}


def tags_of(workers: Sequence[WorkerShare], pace: Pace) -> dict[str, float]:
    """Returns numbers by their tags: `input_wait_share`, `input_wait_share/worker 1`, ..."""
    if not workers:
        return {}
    numbers = {tag: _mean(workers, field) for field, tag in _SHARES.items()}
    if pace is not Pace.PEERS:
        numbers["staleness/mean"] = _mean(workers, "staleness", weight="steps_per_second")
    if pace is Pace.UPDATES:
        tag = _OF_UPDATES["dropped"]
        numbers[tag] = _mean(workers, "dropped", weight="steps_per_second")
    if len(workers) > 1 or pace is not Pace.PEERS:
        fields = _SHARES | (_OWN if pace is not Pace.PEERS else {})
        fields |= _OF_UPDATES if pace is Pace.UPDATES else {}
        numbers |= {
            f"{tag}/{worker.name}": getattr(worker, field)
            for worker in workers
            for field, tag in fields.items()
        }
    return numbers


def of_tags(numbers: Mapping[str, float]) -> list[WorkerShare]:
    """Returns what `tags_of` was given, from its result; [] if it has none of these tags."""
    name_tag = _SHARES["input"]
    if name_tag not in numbers:
        return []
    names = [tag.partition("/")[2] for tag in numbers if tag.startswith(f"{name_tag}/")] or [""]
    return [
        WorkerShare(
            name,
            **{
                field: numbers.get(f"{tag}/{name}" if name else tag, 0.0)
                for field, tag in (_SHARES | (_OWN | _OF_UPDATES if name else {})).items()
            },
        )
        for name in names
    ]


def pace_in(numbers: Mapping[str, float]) -> Pace:
    """Returns the pace that `tags_of` was given, from its result."""
    if _OF_UPDATES["dropped"] in numbers:
        return Pace.UPDATES
    return Pace.SERVED if "staleness/mean" in numbers else Pace.PEERS


def _mean(workers: Sequence[WorkerShare], field: str, *, weight: str | None = None) -> float:
    weights = [getattr(each, weight) if weight else 1.0 for each in workers]
    values = [getattr(each, field) for each in workers]
    total = sum(weights)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / total if total else 0.0
