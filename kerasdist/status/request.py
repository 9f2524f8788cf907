"""What the environment asks for: KERASDIST_STATUS_PORT and KERASDIST_STATUS_FILE.

Nothing of it may fail the training: what cannot work is left out, with one warning.
"""

import dataclasses
import os
from collections.abc import Mapping

from kerasdist.cluster import Cluster, Task
from kerasdist.messages.address import check_address, split_address
from kerasdist.support import environment
from kerasdist.support.users_line import warn

_JOBS = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """How this task is to tell its state.

    Attributes:
        address: The host, "" for all interfaces, and the port at which it answers; None for none.
        file: The file that it writes; "" for none.
    """

    address: tuple[str, int] | None
    file: str


def read(environ: Mapping[str, str], cluster: Cluster) -> Request:
    """Returns what the environment asks of this task; warns of what cannot work.

    Args:
        environ: The variables to read.
        cluster: The tasks, and which of them this process is.
    """
    port = environ.get(environment.STATUS_PORT, "").strip()
    file = environ.get(environment.STATUS_FILE, "").strip()
    return Request(_read_address(port, cluster), _file_of_task(file, cluster) if file else "")


def position(cluster: Cluster) -> int:
    """Returns how many tasks of the same host come before this one: chief, workers, ps tasks.

    An evaluator, which has no address, comes after all tasks.
    """
    addresses = cluster.addresses
    if cluster.task not in addresses:
        return len(addresses)
    host = _host_of(addresses[cluster.task])
    before = (task for task, address in addresses.items() if _host_of(address) == host)
    return sorted(before, key=_order).index(cluster.task)


def _read_address(text: str, cluster: Cluster) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    try:
        check_address(cluster.task, f"{host or 'localhost'}:{port}")
    except ValueError:
        warn(
            f'{environment.STATUS_PORT} must be a port from 1 to 65535, or "host:port". Received: '
            f"{environment.STATUS_PORT}={text!r}. {cluster.task} answers at no port; training goes "
            "on."
        )
        return None
    host, number = split_address(f"{host}:{port}")
    number += position(cluster)
    if number > 65535:
        warn(
            f"{environment.STATUS_PORT}={text!r} leaves no port for {cluster.task}, which would "
            f"be {number}: it answers at none. Name a smaller one."
        )
        return None
    return host, number


def _file_of_task(file: str, cluster: Cluster) -> str:
    """Returns the file itself for the chief, and one beside it for every other task."""
    if cluster.is_chief:
        return file
    stem, ending = os.path.splitext(file)
    return f"{stem}.{cluster.task.job}-{cluster.task.index}{ending}"


def _host_of(address: str) -> str:
    return split_address(address)[0].lower()


def _order(task: Task) -> tuple[int, int]:
    return _JOBS.index(task.job), task.index
