"""One process of the job, by its name: "worker 1"."""

from dataclasses import dataclass

from kerasdist.support.checks import check_int, check_text, is_int


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the job.

    Args:
        job: "chief", "worker", "ps" or "evaluator".
        index: Position in its job, from 0.

    Raises:
        TypeError: `job` is not a str, or `index` is not an int.

    Example:
        ```python
        cluster = kerasdist.Cluster.from_hosts(worker_hosts="a:2222,b:2222", task_id=1)
        cluster.task == kerasdist.Task("worker", 1)  # True
        ```
    """

    job: str
    index: int

    def __post_init__(self) -> None:
        check_text("job", self.job)
        check_int("index", self.index)

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


def read_index(index: object) -> int:
    """Returns the index of a task, and raises a ValueError unless it is a whole number."""
    # Launchers written in shell give the index as text; TensorFlow takes it, so do we.
    try:
        if is_int(index) or isinstance(index, str):
            return int(index)
    except ValueError:
        pass
    raise ValueError(f'"index" of the task must be a whole number. Received: index={index!r}.')
