"""The name of a process, "1234@host": those that share a folder know whose files are in it."""

import contextlib
import os
import re
import socket
import time

_NAME = re.compile(r"(?P<pid>\d+)@(?P<host>.+)")
# A writer on another machine that has changed nothing for so long is taken to be gone.
_SILENT_SECS = 3600.0


def own() -> str:
    """Returns the name of this process."""
    return f"{os.getpid()}@{socket.gethostname()}"


def may_write(name: str, path: str) -> bool:
    """Whether another process may still write into a folder.

    Args:
        name: Of the process; any other text is no process.
        path: Of the folder, on a disk.
    """
    found = _NAME.fullmatch(name)
    if found is None or name == own():
        return False
    if found["host"] == socket.gethostname() and not _is_running(int(found["pid"])):
        return False
    return time.time() - _changed_at(path) < _SILENT_SECS


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # It belongs to another user.
        return True
    return True


def _changed_at(path: str) -> float:
    times = [0.0]
    # It is done, or has removed it; or what is there is not for this process to read.
    with contextlib.suppress(OSError):
        times.append(os.stat(path).st_mtime)
        with os.scandir(path) as files:
            times += [each.stat().st_mtime for each in files]
    return max(times)
