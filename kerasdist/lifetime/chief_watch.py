"""Who is late, where the workers of parameter servers run the steps of a chief."""

from collections.abc import Callable

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime.step_watch import BETWEEN, DATA, Place, StepWatch

_CALL = "computing its steps, or waiting for their data"


class ChiefWatch(StepWatch):
    """Watches the program of the chief, and the worker whose steps it waits for.

    Args:
        cluster: The tasks; this process is the chief.
        awaited: Returns the worker that the chief waits for, or None.
        tell: Takes what ends the job, for the other tasks.
        settings: Those of `StepWatch`, `limit_secs` at least.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        awaited: Callable[[], Task | None],
        tell: Callable[[str], object],
        **settings,
    ):
        super().__init__(cluster, note=lambda text: None, **settings)
        self._awaited, self._tell = awaited, tell

    def _judge(self, own: Place) -> tuple[set[Task], str]:
        task, doing = self._cluster.task, BETWEEN
        if not own.is_between:
            worker = self._awaited()
            task, doing = (worker, _CALL) if worker else (task, DATA)
        return {task}, f"{self._cluster.describe(task)} is late: {doing}."

    def _end_process(self, cause: str, is_late: bool) -> None:
        me = self._cluster.describe(self._cluster.task)
        self._tell(f"{me} failed: {cause}" if is_late else cause)
        super()._end_process(cause, is_late)
