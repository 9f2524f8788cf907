"""TERM, noted and answered later, where it can be answered well."""

import signal
import threading


class Termination:
    """Notes that this process was told to end, instead of ending it at once.

    Attributes:
        is_asked_for: Whether TERM has come since `watch`.
    """

    def __init__(self):
        self.is_asked_for = False
        self._before = None
        self._is_watching = False

    def watch(self) -> None:
        """Begins to note TERM; only the main thread of a program can."""
        self.is_asked_for = False
        if self._is_watching or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.signal(signal.SIGTERM, self._note)
        self._is_watching = True

    def unwatch(self) -> None:
        """Lets TERM do again what it did before."""
        if self._is_watching:
            signal.signal(signal.SIGTERM, self._before)
            self._is_watching = False

    def _note(self, *_):
        self.is_asked_for = True
