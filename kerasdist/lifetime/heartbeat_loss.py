"""Loss of heartbeats: which tasks do not answer, and since when."""

import concurrent.futures
import time
from collections.abc import Callable, Mapping

from kerasdist.cluster import Task
from kerasdist.messages.tensorflow_server import NO_ANSWER, find_problem

# Between two looks. After a longer gap, a task may have been well in between without being asked.
_GAP_SECS = 10.0


class HeartbeatLoss:
    """The heartbeats of some tasks, which are lost while a task does not answer.

    Args:
        addresses: Of the tasks.
        clock: Seconds.

    Attributes:
        halted: Those whose machine answered for them at most, when they were called last.
    """

    def __init__(
        self, addresses: Mapping[Task, str], *, clock: Callable[[], float] = time.monotonic
    ):
        self._addresses = addresses
        self._clock = clock
        self._since: dict[Task, float] = {}
        self._looked_at = clock()
        self.halted: set[Task] = set()
        self._executor = concurrent.futures.ThreadPoolExecutor(
            max_workers=32, thread_name_prefix="kerasdist_probe"
        )

    def look(self) -> None:
        """Calls every task, and notes which of them answer."""
        asked_at = self._clock()  # A call of a halted task takes seconds.
        before = self._since if asked_at - self._looked_at <= _GAP_SECS else {}
        try:
            problems = [*self._executor.map(find_problem, self._addresses.values())]
        except RuntimeError:  # This process ends, and its executors have ended.
            return
        self._looked_at = self._clock()
        self.halted = {
            task
            for task, problem in zip(self._addresses, problems, strict=True)
            if problem == NO_ANSWER
        }
        # A new one: another thread may be reading the other.
        self._since = {
            task: before.get(task, asked_at)
            for task, problem in zip(self._addresses, problems, strict=True)
            if problem
        }

    def tasks(self, secs: float) -> set[Task]:
        """Returns the tasks that have been silent for so long."""
        now = self._clock()
        return {task for task, since in self._since.items() if now - since >= secs}

    def secs_of_all(self) -> float:
        """Returns for how long all tasks have been silent at once; 0 if one answers."""
        since = self._since.values()
        return self._clock() - max(since) if len(since) == len(self._addresses) else 0.0
