"""Opens this task's port, and calls the other tasks, by "host:port"."""

import errno
import multiprocessing
import os
import socket
from concurrent.futures import Future
from typing import Any

from kerasdist.messages.address import bracketed, split_address
from kerasdist.messages.errors import ClusterStartError
from kerasdist.support import environment
from kerasdist.support.background import in_background

UNRESOLVED = "the name does not resolve"
_CONNECT_SECS = 5.0
_REMARK_TO_CHILD = (
    " If that process has started this one with `multiprocessing`, which runs the script of its "
    "parent again, put `kerasdist.make_strategy`, and everything else that a child must not run, "
    'under `if __name__ == "__main__":`.'
)


def listen(address: str, *, name: str) -> socket.socket:
    """Opens the port of this task on every interface, as TensorFlow's server will.

    Args:
        address: Its "host:port".
        name: The task with its address, for messages.

    Raises:
        ClusterStartError: The port is taken, or not allowed.
    """
    _, port = split_address(address)
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        raise ClusterStartError(_describe_taken_port(error, port, name)) from error


def _describe_taken_port(error: OSError, port: int, name: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {name} is already in use on this machine, often by a process of an "
            "earlier run, because the task was started twice, or because the task itself has "
            "started this process, which inherits its variables. "
            f"`ss -ltnp 'sport = :{port}'` or `lsof -i :{port}` shows who holds it. Stop that "
            "process, give the task another port on every task, or set TF_CONFIG={} for a process "
            "that runs by itself."
            f"{_REMARK_TO_CHILD if _is_child() else ''}"
        )
    return f"Port {port} of {name} cannot be opened: {error}. Give the task another port."


def _is_child() -> bool:
    """Whether `multiprocessing` has started this process."""
    # While it runs the script of its parent, it knows no `parent_process` yet.
    return multiprocessing.current_process().name != "MainProcess"


def call(address: str) -> Future[socket.socket]:
    """Connects to an address, in the background."""
    return in_background(connect, address)


def abandon(attempt: Future[socket.socket]) -> None:
    """Closes what a call gives, now or when it is through."""
    attempt.add_done_callback(lambda done: None if done.exception() else done.result().close())


def connect(address: str) -> socket.socket:
    """Connects to an address; the socket has a timeout of some seconds.

    Raises:
        OSError: There is no connection.
        UnicodeError: The name cannot be one.
    """
    problem = OSError(f"{address} has no address")
    for family, _, _, _, place in _resolve(address):
        try:
            return _connect_to(family, place)
        except OSError as error:
            problem = error
    raise problem


def _connect_to(family: int, place: Any) -> socket.socket:
    caller = socket.socket(family, socket.SOCK_STREAM)
    try:
        caller.settimeout(_CONNECT_SECS)
        # The port that Linux picks may be one where a task of this machine is to listen soon.
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.connect(place)
        # Where nobody listens, a socket can even be connected to itself.
        if caller.getsockname() == caller.getpeername():
            raise ConnectionRefusedError
    except OSError:
        caller.close()
        raise
    return caller


def own_host(seen: str) -> str:
    """Returns the host under which others reach this process, as it stands in an address.

    Args:
        seen: The host that counts unless the user has named another one.
    """
    return bracketed(os.environ.get(environment.HOST, "") or seen)


def is_here(address: str) -> bool:
    """Returns whether an address is one of this machine.

    Raises:
        OSError: Its name does not resolve.
    """
    return any(_can_bind(family, place) for family, _, _, _, place in _resolve(address))


def is_taken_here(address: str) -> bool:
    """Returns whether a process of this machine listens at an address; not if it is none."""
    try:
        if not is_here(address):
            return False
        connect(address).close()
    except (OSError, ValueError):
        return False
    return True


def _can_bind(family: int, place: Any) -> bool:
    host, _, *scope = place
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0, *scope))
    except OSError:
        return False
    return True


def _resolve(address: str) -> list[Any]:
    return socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)


def describe_problem(error: BaseException | None) -> str:
    """Returns in a few words why a call failed."""
    match error:
        case socket.gaierror() | UnicodeError():
            return UNRESOLVED
        case ConnectionRefusedError():
            return "connection refused, nothing listens there"
        case TimeoutError():
            return "no answer to a connection, a firewall may drop it"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return "no route to it"
    return str(error)
