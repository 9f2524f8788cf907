"""Tells the state of this task from now on, where the environment asks for it."""

import errno
import os
from collections.abc import Callable, Mapping

from kerasdist.cluster import Cluster
from kerasdist.status import request, server, task_status
from kerasdist.status.status_file import StatusFile
from kerasdist.support import environment
from kerasdist.support.users_line import warn


def start(
    cluster: Cluster,
    *,
    at_end: Callable[[Callable[[], object]], object],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Opens the port and the file that the environment names, once in a process.

    It never fails: there is a warning of what cannot be had.

    Args:
        cluster: The tasks, and which of them this process is.
        at_end: Has a function called when the process ends.
        environ: The variables to read.
    """
    status = task_status.of_process()
    status.begin(cluster)
    if status.is_told:
        return
    status.is_told = True
    wanted = request.read(environ, cluster)
    if wanted.address:
        _listen(wanted.address, status)
    if wanted.file:
        _write(wanted.file, status, at_end)


def _listen(address: tuple[str, int], status: task_status.TaskStatus) -> None:
    host, port = address
    try:
        server.listen(address, status)
    except (OSError, UnicodeError) as error:
        is_taken = getattr(error, "errno", None) == errno.EADDRINUSE
        problem = "is already in use on this machine" if is_taken else f"cannot be opened: {error}"
        warn(
            f"{environment.STATUS_PORT}: port {port}{f' of {host}' if host else ''} {problem}. "
            f"{status.task} answers at no port; training goes on. Name another one."
        )
    else:
        status.measures_time = True
        status.add_reader()


def _write(file: str, status: task_status.TaskStatus, at_end: Callable) -> None:
    found = StatusFile(file, status)
    try:
        found.start()
    except OSError as error:
        warn(
            f"{environment.STATUS_FILE}: {file!r} cannot be written: {error}. Training goes on. "
            "Name a file in a folder that is there."
        )
    else:
        status.measures_time = True
        status.add_reader()
        at_end(found.finish)
