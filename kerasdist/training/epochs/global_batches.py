"""The batches of one call of the train, test or predict function, and what came of them."""

import dataclasses
from typing import Any

from kerasdist.training.context import running_call
from kerasdist.training.epochs.data_source import DataSource


@dataclasses.dataclass(kw_only=True, eq=False)
class GlobalBatches:
    """What a step function is called with.

    Attributes:
        source: Of global batches, or of values that are distributed already.
        first_step: Steps of the epoch before them.
        num_steps: How many batches this call may take.
        is_exact: Whether `num_steps` batches are known to be left.
        num_taken: The answer: how many steps there were. None before it.
    """

    source: DataSource
    first_step: int
    num_steps: int
    is_exact: bool
    num_taken: int | None = None

    def answer(self, num_taken: int, next_size: Any = None) -> None:
        """Notes what the step function did.

        Args:
            num_taken: How many steps there were.
            next_size: The examples of the global batch after them, where there was one before.

        Raises:
            StopIteration: There was no batch left.
        """
        self.num_taken = num_taken
        self.source.note(num_taken, next_size)
        running_call.note_steps(self.first_step + num_taken)
        if num_taken == 0:
            raise StopIteration

    def __iter__(self):
        return self

    def __next__(self):
        """Returns the next batch; `predict` takes them one by one."""
        return next(self.source)
