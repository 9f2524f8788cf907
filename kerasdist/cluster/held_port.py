"""The port at which TensorFlow will listen in this process, held until the others know it."""

import contextlib
import os
import zlib
from collections.abc import Generator

from kerasdist.messages.addresses import listen
from kerasdist.messages.errors import ClusterStartError
from kerasdist.support import environment

# Below 32768, where Linux begins to hand out ports to outgoing connections.
_FIRST_PORT, _NUM_PORTS = 12_000, 20_000


@contextlib.contextmanager
def held_port(address: str, rank: int) -> Generator[int]:
    """Holds a port, so that no other process of the job takes it.

    KERASDIST_PORT names it; else it is the first free one from a number that depends on the job, so
    that a process which is started again has it again.

    Args:
        address: Where the processes meet.
        rank: Which of them this one is.

    Raises:
        ValueError: KERASDIST_PORT is no port.
        ClusterStartError: It is taken.
    """
    given = os.environ.get(environment.PORT, "")
    if given:
        candidates = [_checked_port(given)]
    else:
        first = zlib.crc32(address.encode()) + rank
        candidates = [_FIRST_PORT + (first + offset) % _NUM_PORTS for offset in range(_NUM_PORTS)]
    listener, port = None, 0
    for port in candidates:
        with contextlib.suppress(ClusterStartError):
            listener = listen(f"localhost:{port}", name="this process")
            break
    if listener is None:
        raise ClusterStartError(
            f"Port {given or 'of this process'} is already in use on this machine. Give another "
            f"one in {environment.PORT}."
        )
    with listener:
        yield port


def _checked_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise ValueError(
            f"{environment.PORT} must be a number from 1 to 65535. Received: {text!r}."
        )
    return int(text)
