"""Calls a task until it answers."""

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from kerasdist.messages.addresses import UNRESOLVED, abandon, call, describe_problem
from kerasdist.messages.connections import RUNS_TENSORFLOW, Connection, Connections

# Between two calls, doubled from the first to the longest.
_FIRST_PAUSE_SECS = 0.1
_LONGEST_PAUSE_SECS = 2.0


class Contact:
    """A task that this one calls until it answers.

    Args:
        task: Its name, such as "worker 1".
        address: Its "host:port".
        clock: Seconds.

    Attributes:
        connection: The call, once it is through.
        status: How the last call went, in words.
        is_refused: Whether the last call ended because the secrets of the two sides differ.
    """

    def __init__(self, task: str, address: str, *, clock: Callable[[], float]):
        self.task = task
        self.address = address
        self.connection: Connection | None = None
        self.status = "not called yet"
        self.is_refused = False
        self._clock = clock
        self._attempt: Future[socket.socket] | None = None
        self._pause_secs = _FIRST_PAUSE_SECS
        self._next_at = 0.0

    def __str__(self) -> str:
        return f"{self.task} ({self.address}: {self.status})"

    @property
    def is_answered(self) -> bool:
        """Whether the task has answered and is still there."""
        return self.connection is not None and self.connection.is_answered

    @property
    def is_unresolved(self) -> bool:
        """Whether its name was unknown at the last call."""
        return self.status == UNRESOLVED

    @property
    def runs_tensorflow(self) -> bool:
        """Whether a server of TensorFlow has answered the last call."""
        return self.status == RUNS_TENSORFLOW

    def call_soon(self) -> None:
        """Calls without a pause: the task has just shown that it is there."""
        self._next_at = 0.0

    def keep_calling(
        self, connections: Connections, greeting: Callable[[Connection], Mapping[str, Any]]
    ) -> None:
        """Does what is due: a call, a greeting, another call after one that ended.

        Args:
            connections: Where the call is kept.
            greeting: Returns what this side says first.
        """
        if self.connection is not None:
            if self.connection.end:
                self.is_refused = bool(self.connection.refusal)
                self._fail(self.connection.end)
        elif self._attempt is None:
            if self._clock() >= self._next_at:
                self._attempt = call(self.address)
        elif self._attempt.done():
            self._take(self._attempt, connections, greeting)

    def _take(
        self, attempt: Future[socket.socket], connections: Connections, greeting: Callable
    ) -> None:
        error = attempt.exception()
        if error is not None:
            self._fail(describe_problem(error))
            return
        self._attempt = None
        self.status = "it has not answered yet"
        self.connection = connections.add(attempt.result(), is_call=True)
        self.connection.send(greeting(self.connection))

    def _fail(self, status: str) -> None:
        self.status = status
        self.connection = self._attempt = None
        self._next_at = self._clock() + self._pause_secs
        self._pause_secs = min(2 * self._pause_secs, _LONGEST_PAUSE_SECS)

    def close(self) -> None:
        """Gives up a call that is under way."""
        if self._attempt is not None:
            abandon(self._attempt)
