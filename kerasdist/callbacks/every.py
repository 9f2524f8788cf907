"""Callbacks that see some of the steps."""

import time
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.support.checks import check_steps_or_secs
from kerasdist.training.report.callback_list import is_overridden
from kerasdist.training.report.update_counter import StepCounter
from kerasdist.training.report.wrapper import Wrapper


class Every(Wrapper):
    """Lets a callback see the end of a training step now and then; all its other hooks are called.

    Logs cost nothing in the steps between. With `steps_per_execution` it sees the end of the call
    that contains the step.

    Args:
        callback: A Keras callback.
        steps: After how many steps, counted over all epochs of a `fit`.
        secs: After how many seconds since the last time, or since the beginning of `fit`. Workers
            may run it at different steps, so do not use it for a callback that all workers must run
            together.
        clock: Returns seconds.

    Raises:
        TypeError, ValueError: None or both of `steps` and `secs` are given; `steps` is not an int
            of at least 1; `secs` is not a number, or is negative; `callback` is not a Keras
            callback, or it is part of the update.

    Example:
        ```python
        model.fit(dataset, callbacks=[OnChief(Every(WriteSamples("samples"), steps=1000))])
        ```
    """

    def __init__(
        self,
        callback: keras.callbacks.Callback,
        *,
        steps: int | None = None,
        secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(callback)
        check_steps_or_secs(steps=steps, secs=secs)
        self._steps, self._secs, self._clock = steps, secs, clock

    def set_model(self, model: keras.Model):
        super().set_model(model)
        self._counter, self._num_steps, self._seen_at = StepCounter(model), 0, self._clock()

    def _hand_on(self, hook: str):
        super()._hand_on(hook)
        if hook == "on_train_batch_end" and is_overridden(self.callback, hook):
            self.on_train_batch_end = self._on_train_batch_end

    def _on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        num_new = self._counter.advance(batch)
        self._num_steps += num_new
        if self._is_due(num_new):
            self.callback.on_train_batch_end(batch, logs=logs)

    def _is_due(self, num_new: int) -> bool:
        if self._steps is not None:
            return self._num_steps % self._steps < num_new
        now = self._clock()
        if now - self._seen_at < (self._secs or 0):
            return False
        self._seen_at = now
        return True
