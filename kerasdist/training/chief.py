"""What only the chief of several workers does: write files and show progress."""

import keras

from kerasdist.training import workers


def callbacks_for(callbacks: list, strategy) -> list:
    """Returns those of Keras' callbacks that this worker runs.

    Callbacks that write files write the same on every worker, to the same path and at the same
    time. The chief runs them alone; the others only restore what BackupAndRestore has kept.

    Args:
        callbacks: The callbacks that the user gave to `fit`.
        strategy: A strategy of ours.
    """
    if workers.is_chief(strategy):
        return callbacks
    restored = [
        _RestoreAlone(callback)
        if isinstance(callback, keras.callbacks.BackupAndRestore)
        else callback
        for callback in callbacks
    ]
    return [callback for callback in restored if not isinstance(callback, _WRITERS)]


def write(stock, model, *args, **kwargs):
    """Stands before `save`, `save_weights` and `export`: the chief writes, the others do not."""
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or workers.is_chief(strategy):
        return stock(model, *args, **kwargs)
    return None


class _RestoreAlone(keras.callbacks.Callback):
    """Restores like the `BackupAndRestore` it is given, and leaves backups to the chief."""

    def __init__(self, backup):
        super().__init__()
        self._backup = backup

    def set_model(self, model):
        super().set_model(model)
        self._backup.set_model(model)

    def on_train_begin(self, logs=None):
        self._backup.on_train_begin(logs)


_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.ProgbarLogger,
)
