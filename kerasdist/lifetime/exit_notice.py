"""The exit notice of a synchronous worker whose program is over, and in which nothing has failed.

If a script calls `evaluate` on the chief alone, the chief waits for workers whose programs are
over. TensorFlow calls these unhealthy. But no worker has failed, and starting the job again would
not help.
"""

import contextlib
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import key_value_store, process_end

_MOST_SECS = 1.0  # It takes milliseconds, unless the chief is halted or cut off.
_OVER = "over"
_LIBRARIES = {"kerasdist", "keras", "tensorflow", *sys.stdlib_module_names}


class ExitNotice:
    """Tells the others, when this process ends, that its program is over.

    The chief is left out: the service that carries what the workers tell each other ends with it.

    Args:
        cluster: The workers, and which of them this process is.
        is_due: Returns whether all that the workers do together has ended in order here. A worker
            that was told to end in the middle of it may get further next time.
    """

    def __init__(self, cluster: Cluster, *, is_due: Callable[[], bool]):
        if cluster.is_chief:
            return
        self._task = cluster.task
        self._is_due = is_due
        self._is_over = threading.Event()
        # Started now: a process that is ending cannot start a thread.
        self._thread = threading.Thread(target=self._post, daemon=True)
        self._thread.start()
        process_end.at_end(self._give)

    def _give(self) -> None:
        has_failed = getattr(sys, "last_value", None) is not None
        if self._is_due() and not has_failed:
            self._is_over.set()
            self._thread.join(_MOST_SECS)

    def _post(self) -> None:
        self._is_over.wait()
        with contextlib.suppress(tf.errors.OpError):  # The chief is gone.
            key_value_store.replace(_name(self._task), _OVER)


def given_by(tasks: Iterable[Task], cluster: Cluster) -> set[Task]:
    """Returns which of some synchronous workers have given notice that their programs are over."""
    if cluster.num_ps:  # Nobody gives it, and TensorFlow has no service that would tell.
        return set()
    return {task for task in tasks if key_value_store.read(_name(task)) == _OVER}


def describe(ended: Iterable[Task], trace: TracebackType | None) -> str:
    """Returns in a sentence why this worker waits for others in vain.

    Args:
        ended: Those whose programs are over.
        trace: Where the program of this one is.
    """
    names = ", ".join(sorted(map(str, ended)))
    return (
        f"the program of {names} is over, and this one waits for it in {_place(trace)}. Every "
        "worker must call `fit` and `evaluate`, in the same order."
    )


def _place(trace: TracebackType | None) -> str:
    """Returns where the user's code has called a library, as it is written in its file."""
    places = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(trace)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES
    ]
    if not places:
        return "its program"
    path, number = places[-1]
    place = f"{os.path.basename(path)}, line {number}"
    code = linecache.getline(path, number).strip()
    return f"`{code}` ({place})" if code else place


def _name(task: Task) -> str:
    return f"program of {task}"
