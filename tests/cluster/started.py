"""Starts processes that nobody else watches, and shows their output until all have ended.

As they are in `mpirun`, Kubernetes or on many machines: nobody ends the others of one that fails.
"""

import subprocess
import threading
import time
from collections.abc import Callable

import psutil

_LIMIT_SECS = 140
_END_SECS = 10


def run_all(
    start: Callable[[int], subprocess.Popen], names: list[str], *, again: bool
) -> list[int]:
    """Runs all, and kills those that are halted once the others have ended.

    Args:
        start: Starts one of them, which writes to a pipe.
        names: Those in front of the lines of each.
        again: Whether one that is killed is started again, once.

    Returns:
        Their exit codes, as of `Popen`; 124 of those that took too long.
    """

    def started(number: int) -> subprocess.Popen:
        process = start(number)
        threading.Thread(target=_show, args=(names[number], process), daemon=True).start()
        return process

    processes = [started(number) for number in range(len(names))]
    left = psutil.Process().children
    end = time.monotonic() + _LIMIT_SECS
    while any(map(_runs, processes)) and time.monotonic() < end:
        for number, process in enumerate(processes):
            if again and process.poll() == -9:
                processes[number], again = started(number), False
        time.sleep(0.02)
    late = [process for process in processes if _runs(process)]
    others = left(recursive=True)
    for process in processes:
        process.kill()
        process.wait()
    psutil.wait_procs(others, _END_SECS)  # Guards end what was started by those.
    return [124 if process in late else process.returncode for process in processes]


def _show(name: str, process: subprocess.Popen) -> None:
    for line in process.stdout or ():
        print(f"{name} | {line}", end="", flush=True)


def _runs(process: subprocess.Popen) -> bool:
    """Whether a process is neither over nor halted."""
    return process.poll() is None and psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
