"""Callbacks that one worker runs for all."""

import keras

from kerasdist import tasks
from kerasdist.training.report.wrapper import Wrapper


class OnChief(Wrapper):
    """Runs a callback on the chief alone, such as one that writes files.

    Keras' own ModelCheckpoint, TensorBoard, CSVLogger and BackupAndRestore do not need it; a
    subclass of them does if it writes files itself. On one machine, and with parameter servers, it
    changes nothing. The callback must not do what all workers do together, such as `evaluate`.

    Args:
        callback: A Keras callback.

    Raises:
        TypeError: `callback` is not a Keras callback, or it is part of the update.

    Example:
        ```python
        model.fit(dataset, callbacks=[OnChief(WriteSamples("samples"))])
        ```
    """

    def set_model(self, model: keras.Model):
        if tasks.is_chief():
            super().set_model(model)
