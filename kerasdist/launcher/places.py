"""The places of a launch: how many workers could run now, and on which machines."""

import time
from collections.abc import Callable, Sequence

from kerasdist.launcher.machine import Machine


class Places:
    """Counts the places that machines have, without those that were lost a short time ago.

    A place where a worker was killed may be one too many, as on a machine without enough memory. So
    it comes back later, unless the job could not go on without it.

    Args:
        machines: Returns the machines that are there now.
        fewest: Workers without which the job waits.
        most: Workers that run at most.
        away_secs: How long a lost place is away.
    """

    def __init__(
        self,
        machines: Callable[[], Sequence[Machine]],
        *,
        fewest: int,
        most: int,
        away_secs: float,
    ):
        self._machines = machines
        self._fewest, self._most = fewest, most
        self._away_secs = away_secs
        self._lost: list[tuple[Machine, float]] = []  # With the time at which it comes back.

    def count(self) -> int:
        """Returns how many workers could run now, if none does."""
        return sum(number for _, number in self.assigned(self._most))

    def assigned(self, number: int) -> list[tuple[Machine, int]]:
        """Returns how many of so many workers each machine runs, the first ones as many as it can.

        Their sum is less if there are not so many places. Machines without a worker are left out.
        """
        now = time.monotonic()
        self._lost = [each for each in self._lost if each[1] > now]
        assigned = []
        for machine in self._machines():
            num_lost = sum(each is machine for each, _ in self._lost)
            here = min(number, max(0, machine.num_places - num_lost))
            number -= here
            if here:
                assigned.append((machine, here))
        return assigned

    def lose(self, machine: Machine) -> None:
        """Notes that a worker was lost on a machine, which may itself be gone."""
        self._lost.append((machine, time.monotonic() + self._away_secs))

    def take_back(self) -> None:
        """Lets as many lost places come back at once as the job needs to go on."""
        while self._lost and self.count() < self._fewest:
            self._lost = self._lost[1:]

    def secs_until_next(self) -> float | None:
        """Returns when the next lost place comes back; None if none is away."""
        there = self._machines()
        times = [back for machine, back in self._lost if machine in there]
        return max(0.0, min(times) - time.monotonic()) if times else None
