"""Ctrl-C in a training of one process: the first waits for a checkpoint, the second does not."""

import contextlib
import os
import signal
import threading

import keras


class CtrlC(keras.callbacks.Callback):
    """Answers the first Ctrl-C in `fit` as the `Checkpoint` beside it answers SIGTERM.

    That is after the running step, with a checkpoint, and with a SystemExit. The second Ctrl-C, or
    one before training has begun, ends it as Python does, at once.

    Args:
        is_on: Whether to answer at all: of several workers each may be told at another step.

    Attributes:
        was_pressed: Whether there was a first one.
    """

    def __init__(self, *, is_on: bool):
        super().__init__()
        self.was_pressed = False
        self._is_on = is_on and threading.current_thread() is threading.main_thread()
        self._before = None
        self._of_term = signal.getsignal(signal.SIGTERM)

    def on_train_begin(self, logs: dict | None = None):
        if self._is_on and self._is_term_watched():
            self._before = signal.signal(signal.SIGINT, self._answer)

    def unwatch(self) -> None:
        """Lets Ctrl-C do again what it did before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _is_term_watched(self) -> bool:
        """Whether the Checkpoint waits for SIGTERM, which would otherwise end the process."""
        return signal.getsignal(signal.SIGTERM) is not self._of_term

    def _answer(self, *_: object):
        self.unwatch()
        if not self._is_term_watched():  # `fit` has just ended.
            raise KeyboardInterrupt
        self.was_pressed = True
        with contextlib.suppress(OSError, RuntimeError):  # In the middle of another line.
            print(
                "\nCtrl-C: training stops after the running step, with a checkpoint. Press it "
                "again to stop at once.",
                flush=True,
            )
        os.kill(os.getpid(), signal.SIGTERM)
