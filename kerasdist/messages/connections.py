"""Exchanges lines of JSON over the connections of this task, in one loop with short waits."""

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from kerasdist.messages.shared_key import Seal
from kerasdist.messages.tensorflow_server import is_greeting
from kerasdist.support.environment import SECRET
from kerasdist.support.text import printable

RUNS_TENSORFLOW = "it runs TensorFlow already, for a job that has not ended"

# Enough for the addresses of 20,000 tasks; what is longer comes from no task.
_LINE_BYTES = 1 << 20
_SEND_SECS = 5.0
_ANSWER_SECS = 10.0
_HANG_UP_SECS = 2.0


class Connection:
    """A connection to what may be another task.

    Args:
        connected: The socket.
        is_call: Whether this side has made it.
        clock: Seconds.
        shared_key: What both sides have to know; None if everybody may speak.

    Attributes:
        is_call: Whether this side has made it.
        handshake: What the other side says about itself, as its reader understands it; None before.
        heard_at: When it was heard last, by the clock.
        answer_by: When the connection ends for want of an answer; None if nothing is due.
        is_tensorflow: Whether a server of TensorFlow has answered.
        refusal: How the secrets of the two sides differ; "" if they do not.
        end: Why it ended; "" while it is open.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        is_call: bool,
        clock: Callable[[], float],
        shared_key: bytes | None = None,
    ):
        connected.settimeout(_SEND_SECS)
        self.socket = connected
        self.is_call = is_call
        self._clock = clock
        self.handshake: Any = None
        self.heard_at = 0.0
        self.is_tensorflow = False
        self.end = ""
        self._unread = b""
        self._seal = Seal(shared_key, is_call=is_call) if shared_key else None
        self._unsent: list[Mapping[str, Any]] = []
        self.refusal = ""
        self._is_free = threading.RLock()  # To send: heartbeats come from a thread of their own.
        if self._seal:
            self._send(self._seal.question())
        self.expect_answer()

    def expect_answer(self) -> None:
        """Gives the other side some seconds to say hello, or to say it again."""
        self.answer_by: float | None = self._clock() + _ANSWER_SECS

    def introduce(self, handshake: Any) -> None:
        """Takes note of who the other side is."""
        self.handshake, self.heard_at, self.answer_by = handshake, self._clock(), None

    @property
    def own_host(self) -> str:
        """The address of this machine that the other side sees."""
        host, *_ = self.socket.getsockname()
        return host.removeprefix("::ffff:")

    @property
    def other_host(self) -> str:
        """The address of the other side's machine."""
        try:
            host, *_ = self.socket.getpeername()
        except OSError:  # It has gone already.
            return "an unknown host"
        return host.removeprefix("::ffff:")

    @property
    def is_answered(self) -> bool:
        """Whether the other side has said who it is and owes no answer."""
        return self.handshake is not None and self.answer_by is None and not self.end

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message. That the other side is gone shows in the next `read`."""
        with self._is_free:
            if self._seal is None:
                self._send(message)
            elif self._seal.is_ready:
                self._send(self._seal.sealed(message))
            else:
                self._unsent.append(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have come.

        Raises:
            ValueError: It ended, or brings something other than messages; see `describe_end`.
        """
        try:
            received = self.socket.recv(1 << 16)
        except OSError:
            received = b""
        self.heard_at = self._clock()
        unread = self._unread + received
        self.is_tensorflow = self.handshake is None and is_greeting(unread)
        if self.is_tensorflow:
            raise ValueError
        *lines, self._unread = unread.split(b"\n")
        if not received or len(self._unread) > _LINE_BYTES:
            raise ValueError
        return [message for line in lines for message in self._opened(_read_message(line))]

    def _opened(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the message that this one is, or holds; none if it prepares others."""
        kind = message["kerasdist"]
        if kind == "refusal":
            self._refuse(f"it does not know the secret of this task, or has one ({SECRET})")
        if self._seal is None:
            if kind in ("number", "sealed"):
                self._refuse(f"it asks for a secret, and this task has none ({SECRET})")
            return [message]
        if kind == "number":
            self._seal.take(message)
            unsent, self._unsent = self._unsent, []
            for each in unsent:
                self.send(each)
            return []
        if kind != "sealed":
            self._refuse(f"it has no secret, and this task has one ({SECRET})")
        try:
            return [_read_message(self._seal.opened(message).encode())]
        except ValueError:
            return self._refuse(f"its secret is not that of this task ({SECRET})")

    def _refuse(self, reason: str) -> NoReturn:
        self.refusal = reason
        self._send({"kerasdist": "refusal"})
        raise ValueError(reason)

    def describe_end(self) -> str:
        """Returns why `read` found an end."""
        if self.refusal:
            return self.refusal
        if self.handshake:
            return "it answered and then went away"
        if self.is_tensorflow:
            return RUNS_TENSORFLOW
        return "something answers there, but not as a task that waits for its cluster"


def _read_message(line: bytes) -> dict[str, Any]:
    try:
        message = _printable(json.loads(line))
    except RecursionError as error:  # Thousands of brackets.
        raise ValueError from error
    if not isinstance(message, dict) or not isinstance(message.get("kerasdist"), str):
        raise ValueError
    return message


def _printable(value: Any) -> Any:
    """Returns what came from outside without what would command a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value


class Connections:
    """The port of this task and all its connections; a context manager that closes them.

    Args:
        listener: The open port; None if nobody calls this task.
        clock: Seconds.
        shared_key: What the others have to know; None if everybody may speak.

    Attributes:
        turned_away: The hosts that called with another secret, or without one, and the difference.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        *,
        clock: Callable[[], float],
        shared_key: bytes | None = None,
    ):
        self._listener = listener
        self._clock = clock
        self._shared_key = shared_key
        self.turned_away: set[tuple[str, str]] = set()
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._open: set[Connection] = set()

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *error: object) -> None:
        for connection in [*self._open]:
            self.drop(connection)
        self._close_listener()
        self._selector.close()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def add(self, connected: socket.socket, *, is_call: bool) -> Connection:
        """Takes a connected socket over."""
        connection = Connection(
            connected, is_call=is_call, clock=self._clock, shared_key=self._shared_key
        )
        self._selector.register(connected, selectors.EVENT_READ, connection)
        self._open.add(connection)
        return connection

    def drop(self, connection: Connection, reason: str = "dropped") -> None:
        """Closes a connection."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        connection.end = reason

    def tasks(self) -> list[Connection]:
        """Returns the connections whose other side is known."""
        # A heartbeat asks, too, while others come and go.
        return [connection for connection in [*self._open] if connection.handshake]

    def receive(self, secs: float) -> Iterator[tuple[Connection, dict[str, Any]]]:
        """Waits for messages, and yields each with its connection.

        Args:
            secs: The longest wait, so that a signal is never far from being handled.
        """
        for key, _ in self._selector.select(secs):
            if key.data is None:
                self._accept()
            else:
                yield from self._read(key.data)
        for connection in [*self._open]:
            if connection.answer_by is not None and connection.answer_by < self._clock():
                self.drop(connection, _describe_timeout(connection))

    def _accept(self) -> None:
        # The caller may be gone already.
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self.add(self._listener.accept()[0], is_call=False)

    def _read(self, connection: Connection) -> Iterator[tuple[Connection, dict[str, Any]]]:
        if connection.end:  # Dropped in answer to an earlier message of this round.
            return
        try:
            messages = connection.read()
        except ValueError:
            if connection.refusal and not connection.is_call:
                self.turned_away.add((connection.other_host, connection.refusal))
            self.drop(connection, connection.describe_end())
            return
        for message in messages:
            yield connection, message

    def hang_up(self) -> None:
        """Ends all connections such that what was sent arrives and the port is free at once.

        Who called ends the call: the side that ends a connection keeps its port for a minute, which
        for the caller is a port that nobody needs.
        """
        self._close_listener()
        for connection in [*self._open]:
            if connection.handshake is None:
                self.drop(connection)
            elif connection.is_call:
                with contextlib.suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_WR)
        end = self._clock() + _HANG_UP_SECS
        while self._open and self._clock() < end:
            for _ in self.receive(0.05):
                pass


def _describe_timeout(connection: Connection) -> str:
    if connection.handshake:
        return "it answered once and is silent now"
    return "something accepts connections there, but does not answer as a task does"
