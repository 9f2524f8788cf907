"""How many steps a call of `fit` has made.

Callbacks hear only of the last step of a call, by its number in the epoch.
"""


class StepCounter:
    """Counts the steps of a `fit` over its epochs and its calls of several steps."""

    def __init__(self):
        self._last_batch = -1

    def advance(self, batch: int) -> int:
        """Notes the end of a call of `fit`; returns how many steps it had.

        Args:
            batch: The last step of the call in its epoch, from 0.
        """
        is_of_new_epoch = batch <= self._last_batch
        before, self._last_batch = -1 if is_of_new_epoch else self._last_batch, batch
        return batch - before
