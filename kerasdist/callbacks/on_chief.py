"""Callbacks that one worker runs for all."""

from kerasdist import tasks
from kerasdist.training.report.wrapper import Wrapper


class OnChief(Wrapper):
    """Runs a callback on the chief alone, such as one that writes files.

    Keras' own that write (ModelCheckpoint, TensorBoard, CSVLogger, BackupAndRestore) need it not;
    subclasses of them need it where they write files by themselves.
    On one machine, and beside parameter servers, it changes nothing. The callback must not do what
    all workers do together, such as `evaluate`.

    Args:
        callback: A Keras callback.

    Raises:
        TypeError: `callback` is no Keras callback, or one that is part of the update.

    Example:
        ```python
        model.fit(dataset, callbacks=[OnChief(WriteSamples("samples"))])
        ```
    """

    def set_model(self, model):
        if tasks.is_chief():
            super().set_model(model)
