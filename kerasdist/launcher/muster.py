"""Waits until enough workers can run, and says which machine runs which of them."""

import math
import time
from collections.abc import Callable

from kerasdist.launcher.attempt_watch import Crew
from kerasdist.launcher.places import Places
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import tasks_of

_POLL_SECS = 0.05
_SETTLE_SECS = 5.0  # At first, more machines may come so long after the last one.
_SAY_SECS = 10.0


class Muster:
    """Finds the crew of the next attempt.

    Args:
        settings: The tasks, and how long to wait for workers.
        places: How many workers could run now.
        say: Shows lines of the launcher itself.
    """

    def __init__(self, settings: Settings, places: Places, *, say: Callable[[str], None]):
        self._settings = settings
        self._places = places
        self._say = say
        self._said_at = -math.inf

    def crew(self, deadline: float, *, settle: bool = False) -> Crew | None:
        """Waits until enough workers can run; returns None if that takes too long.

        Args:
            deadline: Time of `time.monotonic` at which to give up in any case.
            settle: Whether more machines than needed may be about to come, since all start now.
        """
        began = changed = time.monotonic()
        self._said_at = began if settle else -math.inf
        last = -1
        while True:
            self._places.take_back()
            number, now = self._places.count(), time.monotonic()
            changed, last = (changed if number == last else now), number
            left = min(began + self._settings.start_timeout_secs, deadline) - now
            is_settled = not settle or number == self._settings.most_workers
            is_settled = is_settled or now >= changed + _SETTLE_SECS or left <= 0
            if number < self._settings.fewest_workers:
                self._tell_wait(number, left)
            elif is_settled and (crew := self._placed(number)):
                return crew
            if left <= 0:
                return None
            time.sleep(_POLL_SECS)

    def _tell_wait(self, number: int, left: float) -> None:
        now = time.monotonic()
        if now >= self._said_at + _SAY_SECS:
            self._said_at = now
            self._say(
                f"Waiting for workers: {number} of at least {self._settings.fewest_workers} "
                f"can run; {max(0, left):.0f} s left."
            )

    def _placed(self, number: int) -> Crew | None:
        """Returns the tasks of so many workers, or None if a machine is gone meanwhile."""
        tasks = tasks_of(self._settings, num_workers=number)
        others = [task for task in tasks if task.job != "worker"]  # On the first machine.
        workers = [task for task in tasks if task.job == "worker"]
        placed, addresses = [], {}
        for machine, num_here in self._places.assigned(number):
            here = [*others, *workers[:num_here]]
            others, workers = [], workers[num_here:]
            members = [task for task in here if task.job != "evaluator"]
            free = machine.addresses(len(members))
            if len(free) < len(members):
                return None
            addresses.update(zip(members, free, strict=True))
            placed.append((machine, [task for task in tasks if task in here]))
        if workers:
            return None
        addresses = {task: addresses[task] for task in tasks if task in addresses}
        return Crew(tasks=tasks, placed=placed, addresses=addresses)
