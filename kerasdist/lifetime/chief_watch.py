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


class ChiefWatch(StepWatch):
    """Watches the program of the chief, and the worker whose steps it waits for.

    Args:
        cluster: The tasks; this process is the chief.
        awaited: Returns the worker that the chief waits for, or None.
        waits_for_data: Returns whether that worker waits for data; None if it does not answer.
        settings: Those of `StepWatch`, at least `limit_secs` and `tell`.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        awaited: Callable[[], Task | None],
        waits_for_data: Callable[[Task], bool | None],
        **settings: Any,
    ):
        super().__init__(cluster, note=lambda text: None, **settings)
        self._awaited, self._waits_for_data = awaited, waits_for_data

    def _progress_of_others(self) -> dict[Task, Progress]:
        return {}  # The workers have none: they run what the chief sends them.

    def _judge(self, progress: Mapping[Task, Progress]) -> tuple[set[Task], str]:
        task = self._cluster.task
        doing = BETWEEN if progress[task].is_between else DATA
        if worker := self._awaited():  # It may wait between two steps, too, for results.
            task, doing = worker, _WAITS[self._waits_for_data(worker)]
        return {task}, f"{self._cluster.describe(task)} is late: {doing}."

    def _end_process(self, cause: str, is_late: bool) -> None:
        if is_late:
            peer_failure.end_by_itself(cause, self._cluster, self._tell)
        self._tell(cause)
        peer_failure.end(cause, self._cluster)
