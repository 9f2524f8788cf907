"""Watches who is late when the workers of parameter servers run the steps of a chief."""

from collections.abc import Callable, Mapping
from typing import Any

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.step_watch import BETWEEN, DATA, Progress, StepWatch

_WAITS = {
    True: DATA,
    False: "computing its step, or exchanging it with the parameter servers",
    None: "it does not say whether it computes or waits for data",
}


_TRACING = "tracing its first step, or waiting for it"
_COMPUTING = "workers are computing their batches, or exchanging them with the parameter servers"


class ChiefWatch(StepWatch):
    """Watches the program of the chief, and the worker whose steps it waits for.

    Args:
        cluster: The tasks; this process is the chief.
        awaited: Returns the worker that the chief waits for, or None.
        waits_for_data: Returns whether that worker waits for data; None if it does not answer.
        are_synchronous: Whether it waits for updates, to which all workers contribute.
        settings: Those of `StepWatch`, at least `limit_secs` and `tell`.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        awaited: Callable[[], Task | None],
        waits_for_data: Callable[[Task], bool | None],
        are_synchronous: bool = False,
        **settings: Any,
    ):
        super().__init__(cluster, note=lambda text: None, **settings)
        self._awaited, self._waits_for_data = awaited, waits_for_data
        self._are_synchronous = are_synchronous

    def _progress_of_others(self) -> dict[Task, Progress]:
        return {}  # The workers have none: they run what the chief sends them.

    def _judge(self, progress: Mapping[Task, Progress]) -> tuple[set[Task], str]:
        task = self._cluster.task
        doing = BETWEEN if progress[task].is_between else DATA
        if worker := self._awaited():  # It may wait between two steps, too, for results.
            task, doing = worker, _WAITS[self._waits_for_data(worker)]
        elif self._is_tracing:
            doing = _TRACING
        elif self._are_synchronous and not progress[task].is_between:
            return self._judge_workers()
        return {task}, f"{self._cluster.describe(task)} is late: {doing}."

    def _judge_workers(self) -> tuple[set[Task], str]:
        """Returns which workers have not even got the batches that an update waits for."""
        workers = [task for task in self._cluster.addresses if task.job == "worker"]
        late = [task for task in workers if self._waits_for_data(task)]
        if not late:
            chief = self._cluster.describe(self._cluster.task)
            return {self._cluster.task}, f"{chief} waits for an update: {_COMPUTING}."
        names = ", ".join(map(self._cluster.describe, late))
        if len(late) > 1:
            return set(late), f"{names} are late: waiting for their data."
        return set(late), f"{names} is late: {DATA}."

    def _end_process(self, cause: str, is_late: bool) -> None:
        if is_late:
            peer_failure.end_by_itself(cause, self._cluster, self._tell)
        self._tell(cause)
        peer_failure.end(cause, self._cluster)
