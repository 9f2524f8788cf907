"""Writes the numbers of a task into a file, every few seconds and when the process ends."""

import datetime
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kerasdist.status.number import to_json, to_prometheus
from kerasdist.status.task_status import ENDED, TaskStatus
from kerasdist.support import environment
from kerasdist.support.terminal import announce

_EVERY_SECS = 10.0


class StatusFile:
    """A file with lines of JSON, to which others are added; or the latest text for Prometheus.

    Args:
        path: The file. If it ends in ".prom" it has Prometheus' text, as the textfile collector of
            its node exporter reads it, and is replaced as a whole.
        status: What is written.
        sleep: Waits so many seconds.
    """

    def __init__(
        self, path: str, status: TaskStatus, sleep: Callable[[float], object] = time.sleep
    ):
        self._path, self._status, self._sleep = path, status, sleep
        self._lock = threading.Lock()

    def start(self) -> None:
        """Writes from now on, in a thread that keeps the process from nothing.

        Raises:
            OSError: The file cannot be written.
        """
        self._write()
        threading.Thread(target=self._go_on, name="kerasdist_status_file", daemon=True).start()

    def finish(self) -> None:
        """Writes a last time, as the process ends."""
        self._status.state = ENDED
        self._try()

    def _go_on(self) -> None:
        while self._status.state != ENDED:
            self._sleep(_EVERY_SECS)
            self._try()

    def _try(self) -> None:
        try:
            self._write()
        except OSError as error:
            announce(
                f"{environment.STATUS_FILE}: the state cannot be written to {self._path!r}: "
                f"{error}. Training goes on, and later states are tried."
            )

    def _write(self) -> None:
        with self._lock:  # The thread, and the end of the process.
            if self._path.endswith(".prom"):
                # The collector reads every file that ends in ".prom".
                unfinished = f"{self._path}.writing"
                text = to_prometheus(self._status.numbers(), self._status.labels)
                Path(unfinished).write_text(text)
                os.replace(unfinished, self._path)
            else:
                with Path(self._path).open("a") as file:
                    file.write(f"{json.dumps(self._line())}\n")

    def _line(self) -> dict[str, object]:
        now = datetime.datetime.now(datetime.UTC)
        numbers = to_json(self._status.numbers())
        return {
            "time": now.isoformat(timespec="milliseconds"),
            **self._status.labels,
            **numbers,
            "state": self._status.state,
        }
