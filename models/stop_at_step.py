"""Ends training after an exact number of steps, in mid-epoch where it falls there."""

import keras


class StopAtStep(keras.callbacks.Callback):
    """Stops `fit` after `last_step` global steps; the epoch under way ends with its validation.

    Args:
        last_step: how many steps to make.

    Attributes:
        step: how many steps are made so far.
    """

    def __init__(self, last_step: int):
        super().__init__()
        self.last_step = last_step
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        """Count the step."""
        self.step += 1
        if self.step >= self.last_step:
            self.model.stop_training = True
