"""How many steps a call of `fit` has made.

Callbacks hear only of the last step of a call, by its number in the epoch. Keras takes each call
for one of `steps_per_execution` steps; the last one of an epoch may have fewer.
"""

from kerasdist.training.context import running_call


class StepCounter:
    """Counts the steps of a `fit` over its epochs and its calls of several steps.

    Args:
        model: Whose `fit` it is.
    """

    def __init__(self, model):
        self._model = model
        self._num_steps = 0

    def advance(self, batch: int) -> int:
        """Notes the end of a call of `fit`; returns how many steps it had.

        Args:
            batch: The last step of the call in its epoch, from 0, as Keras reports it.
        """
        before = self._num_steps
        self._num_steps = running_call.num_steps_of_epoch(self._model, batch)
        is_of_new_epoch = self._num_steps <= before
        return self._num_steps - (0 if is_of_new_epoch else before)
