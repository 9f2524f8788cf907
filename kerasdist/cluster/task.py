"""One process of the job, by its name: "worker 1"."""

from dataclasses import dataclass

from kerasdist.checks import is_int


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the job.

    Args:
        job: "chief", "worker", "ps" or "evaluator".
        index: Position in its job, from 0.
    """

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


def read_index(index: object) -> int:
    """Returns the index of a task, and raises a ValueError where it is no whole number."""
    # Launchers written in shell give the index as text; TensorFlow takes it, so do we.
    try:
        if is_int(index) or isinstance(index, str):
            return int(index)
    except ValueError:
        pass
    raise ValueError(f'"index" of the task must be a whole number. Received: index={index!r}.')
