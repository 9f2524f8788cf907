"""Moving averages of the losses."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.support.checks import check_decay
from kerasdist.training.hooks import step_variables
from kerasdist.training.hooks.update_callback import StepCallback


class LossAverages(StepCallback):
    """Logs every loss as it was in the last step, and as a moving average over the steps.

    The log "loss" becomes the moving average, and "loss (raw)" the loss of the last global batch;
    so do the losses of the outputs of a model that has several. Both are what progress bars,
    summaries and other callbacks see, in place of Keras' mean since the start of the epoch.

    Averages go on in the next `fit` of the same model.

    Args:
        decay: Decay per step, from 0 to less than 1. The average of the first n steps is divided by
            1 - decay**n, so that it does not start near 0.

    Raises:
        TypeError, ValueError: `decay` is not a number from 0 to less than 1.

    Example:
        ```python
        model.fit(dataset, callbacks=[LossAverages(decay=0.9)])
        ```

    Source: `loss_averages` of the Inception trainers, with their names.
    """

    def __init__(self, decay: float = 0.9):
        super().__init__()
        check_decay("decay", decay)
        self.decay = decay
        self._state: dict[str, Any] = {}
        self._restored: dict[str, np.ndarray] = {}

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns what the averages are made of, for a checkpoint.

        By the names of the losses, float32 [3] each: the last loss, the weighted sum of all, and
        the sum of the weights.
        """
        return self._restored | {name: state.numpy() for name, state in self._state.items()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Sets the averages from `get_state()`, now or with the first step."""
        self._restored = dict(state)
        for name, variable in self._state.items():
            if name in state:
                variable.assign(state[name])

    def prepare(self, model: keras.Model):
        if self.prepared_for() is model:
            self._restored = self.get_state()
        self._state = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        for name in self._state:  # They go on from it; no other model must begin with it.
            self._restored.pop(name, None)

    def observe(self, losses: dict[str, Any]):
        for name, loss in losses.items():
            if name not in self._state:
                strategy = self.model.distribute_strategy
                with tf.init_scope(), step_variables.being_made(strategy):
                    start = self._restored.pop(name, np.zeros(3, "float32"))
                    self._state[name] = tf.Variable(start, trainable=False)
            _, total, weight = tf.unstack(self._state[name])
            total = self.decay * total + (1 - self.decay) * loss
            weight = self.decay * weight + (1 - self.decay)
            self._state[name].assign(tf.stack([loss, total, weight]))

    def change_logs(self, logs: dict[str, Any]):
        for name, state in self._state.items():
            raw, total, weight = (float(value) for value in state.numpy())
            logs |= {f"{name} (raw)": raw, name: total / weight if weight else raw}
        return logs

    def describe(self):
        return f"log losses averaged with decay={self.decay:g}"
