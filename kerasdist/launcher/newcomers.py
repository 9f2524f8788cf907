"""When a running attempt is stopped on purpose, so that the next one has more workers."""

import time
from collections.abc import Callable, Iterable

from kerasdist.launcher.machine import Machine
from kerasdist.launcher.places import Places


class Progress:
    """The checkpoints that machines tell of.

    Attributes:
        newest_step: The step of the newest; None before the first.
        num_checkpoints: How many were noticed. Their steps may repeat or fall: a program can train
            several models.
        newest_at: The time of `time.monotonic` at which the newest was noticed.
    """

    def __init__(self):
        self.newest_step: int | None = None
        self.num_checkpoints = 0
        self.newest_at = 0.0
        self._seen: dict[Machine, int | None] = {}

    def look(self, machines: Iterable[Machine]) -> None:
        """Asks machines for their newest checkpoint."""
        for machine in machines:
            step = machine.newest_step
            if step is not None and step != self._seen.get(machine):
                self._seen[machine] = self.newest_step = step
                self.num_checkpoints += 1
                self.newest_at = time.monotonic()


class Newcomers:
    """Decides when an attempt ends for workers that could run in addition.

    They wait until a checkpoint was written since they came, or for some time. All save when they
    are told to end. A program without checkpoints is not stopped: it would lose everything.

    Args:
        places: How many workers could run now.
        progress: The checkpoints of the attempt.
        num_workers: How many run.
        wait_secs: How long newcomers wait for a checkpoint.
        say: Shows lines of the launcher itself.
    """

    def __init__(
        self,
        places: Places,
        progress: Progress,
        *,
        num_workers: int,
        wait_secs: float,
        say: Callable[[str], None],
    ):
        self._places = places
        self._progress = progress
        self._num_workers = num_workers
        self._wait_secs = wait_secs
        self._say = say
        self._came_at: float | None = None
        self._num_checkpoints = 0  # When they came.
        self._has_told = False

    def are_due(self) -> bool:
        """Whether the attempt should end now; a line says so."""
        number = self._places.count()
        if number <= self._num_workers:
            self._came_at = None
            return False
        if self._came_at is None:
            self._came_at = time.monotonic()
            self._num_checkpoints = self._progress.num_checkpoints
        is_late = time.monotonic() >= self._came_at + self._wait_secs
        if not self._progress.num_checkpoints:
            if is_late:
                self._tell_why_not(number)
            return False
        is_due = is_late or self._progress.num_checkpoints > self._num_checkpoints
        if is_due:
            self._say(
                f"{number} workers can run now, not only {self._num_workers}: the job saves, and "
                f"goes on with all {number}."
            )
        return is_due

    def _tell_why_not(self, number: int) -> None:
        if not self._has_told:
            self._has_told = True
            do = "does is" if self._num_workers == 1 else "do are"
            self._say(
                f"{number} workers could run now, but the {self._num_workers} that {do} not "
                "stopped before there is a checkpoint: all that was trained would be lost. Give "
                "`fit` a `kerasdist.callbacks.Checkpoint`."
            )
