"""Records what this process does, with TensorFlow's profiler."""

import tempfile
from pathlib import Path

import tensorflow as tf


class Recorder:
    """Records what this process does, one recording at a time.

    Example:
        recorder = Recorder()
        recorder.start()
        step()
        profile = recorder.stop()
    """

    def __init__(self):
        self._folder: tempfile.TemporaryDirectory | None = None

    @property
    def is_running(self) -> bool:
        """Whether it records."""
        return self._folder is not None

    def start(self) -> None:
        """Begins to record.

        Raises:
            tf.errors.AlreadyExistsError: Another recording is running in this process.
        """
        # TensorFlow names its file after the machine, which several tasks may share.
        folder = tempfile.TemporaryDirectory(prefix="kerasdist_trace_")
        try:
            tf.profiler.experimental.start(folder.name)
        except BaseException:
            folder.cleanup()
            raise
        self._folder = folder

    def stop(self) -> bytes:
        """Ends the recording and returns it: a serialized XSpace.

        Raises:
            RuntimeError: Nothing is being recorded.
            OSError, tf.errors.OpError: TensorFlow could not write it to the temporary folder.
        """
        if self._folder is None:
            raise RuntimeError("Nothing is being recorded. Call `start` first.")
        folder, self._folder = self._folder, None
        with folder:
            tf.profiler.experimental.stop()
            files = list(Path(folder.name).rglob("*.xplane.pb"))
            if not files:
                raise OSError(f"TensorFlow has written no profile to {folder.name}")
            return files[0].read_bytes()

    def cancel(self) -> None:
        """Ends the recording, if one is running, and discards it."""
        if self._folder is None:
            return
        folder, self._folder = self._folder, None
        with folder:
            tf.profiler.experimental.stop(save=False)
