"""A `ModelCheckpoint` for a process that does not write the file itself."""

import os

import keras


class QuietCheckpoint(keras.callbacks.ModelCheckpoint):
    """Decides at the end of an epoch as Keras' own does, and makes no folder and prints nothing.

    `model.save` is for others to keep from writing. What is saved between two steps is decided by
    the logs of one process, so that here nothing is done for it.
    """

    # The one place between the decision, which may be the user's own too, and the file.
    def _save_model(self, epoch, batch, logs):
        if batch is not None:
            return
        kept = self.filepath, self.verbose
        # Of a path without a folder, Keras makes none.
        self.filepath, self.verbose = os.path.basename(self.filepath), 0
        try:
            super()._save_model(epoch, batch, logs)
        finally:
            self.filepath, self.verbose = kept
