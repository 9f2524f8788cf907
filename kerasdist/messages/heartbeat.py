"""Says on every connection that this process is there, and knows which others have fallen silent.

A connection to a machine that was switched off, or to a process that is halted, stays open.
"""

import threading
from collections.abc import Callable

from kerasdist.messages.connections import Connections

BEAT = "beat"  # The kind of message; whoever reads it need not do anything.
SILENCE_SECS = 10.0
_EVERY_SECS = 1.0
_AWAY_SECS = 3.0  # Who has not looked for so long was halted itself, and has to read first.


class Heartbeat:
    """Sends a sign of life each second; a context manager that ends it.

    It does so in a thread: a process that waits for a terminal is alive.

    Args:
        connections: Those of this process.
        clock: Seconds.
    """

    def __init__(self, connections: Connections, *, clock: Callable[[], float]):
        self._connections = connections
        self._clock = clock
        self._looked_at = clock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()

    def _beat(self) -> None:
        while not self._is_over.wait(_EVERY_SECS):
            for connection in self._connections.tasks():
                connection.send({"kerasdist": BEAT})

    def drop_silent(self) -> None:
        """Ends the connections whose other side has sent nothing for some seconds.

        Call it again and again, after `Connections.receive`.
        """
        looked_at, self._looked_at = self._looked_at, self._clock()
        if self._looked_at - looked_at > _AWAY_SECS:
            return
        for connection in self._connections.tasks():
            if self._looked_at - connection.heard_at > SILENCE_SECS:
                self._connections.drop(connection, f"it has been silent for {SILENCE_SECS:g} s")
