"""Ends a task when another one has died, with exit code 138, and says who it was.

TensorFlow reports a lost peer with a page of text from its transport and, with three workers or
more, often names one that only followed. So the first worker that knows the cause tells the others.
The exit code tells a launcher or Kubernetes that this worker did nothing wrong and may be started
again.
"""

import contextlib
import functools
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import exit_notice
from kerasdist.private import runtime
from kerasdist.support import environment, launch_note
from kerasdist.support.exit_codes import FAILED, PEER_FAILED
from kerasdist.support.terminal import end_process, say

# Measured: a peer that is killed, ends or halts gives Unavailable; a halted chief, or a connection
# to it that is cut, DeadlineExceeded; a peer that is started again alone, Aborted. Cancelled has
# not been seen; TensorFlow uses it for what it gives up because of the others.
LOST_TASK_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
)
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_SILENT = "unhealthy (stopped sending heartbeats)"
_LEADER_IS_LOST = re.compile(r"tensorflow\.CoordinationService/|RPC to coordination service")
_NO_REASON = re.compile(r"\s|Graph execution error|Detected at node")
_ABORTED_BY = "Collective ops is aborted by: "
_TOLD = "kerasdist says: "
_MOST_CHARACTERS = 300
_ROUTES, _CALLS = "kerasdist.training.routes", ("_fit", "_evaluate")
_TELL_SECS = 2.0  # TensorFlow takes milliseconds, or for ever if the chief is gone.
_SPREAD_SECS = 1.0


def handle(cluster: Cluster, *, tell: Callable[[str], object] | None = None) -> None:
    """Makes this process end with exit code 138 if an error says that a peer is gone.

    An error of its own ends it as usual, and ends the others with the reason. In a thread, where
    Python would go on, this is so after an error of `fit` or `evaluate`.

    Args:
        cluster: The tasks, and which one this is.
        tell: Tells the others the reason. By default, their collectives fail with it.
    """
    known = {"cluster": cluster, "tell": tell or tell_others, "process_id": os.getpid()}
    for module, hook in ((sys, _hook), (threading, _hook_of_thread)):
        previous = module.excepthook
        if isinstance(previous, functools.partial) and previous.func is hook:
            previous = previous.keywords["previous"]  # An earlier strategy has put it there.
        module.excepthook = functools.partial(hook, previous=previous, **known)


def _hook_of_thread(
    arguments: threading.ExceptHookArgs, *, previous: Callable, process_id: int, **known: Any
):
    error = arguments.exc_value
    is_fatal = isinstance(error, Exception) and (
        _is_of_training(error) or _of_peer(error, known["cluster"]) is not None
    )
    if not is_fatal or os.getpid() != process_id:
        previous(arguments)
        return
    raised = type(error), error, arguments.exc_traceback
    _hook(*raised, previous=lambda *_: previous(arguments), process_id=process_id, **known)
    end_process(FAILED)  # The main thread would end it so.


def _hook(
    error_class: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    previous: Callable,
    cluster: Cluster,
    tell: Callable[[str], object],
    process_id: int,
):
    if os.getpid() != process_id:  # A forked child, whose end is not that of the task.
        previous(error_class, error, trace)
        return
    of_peer = _of_peer(error, cluster)
    if of_peer is None:
        launch_note.add(launch_note.FAILED)  # Its end may take longer than that of the others.
    if of_peer is None or of_peer is not error:  # The program's own, or one it made of the loss.
        previous(error_class, error, trace)
    if of_peer is None:
        tell(f"{_has_failed(cluster)}{_in_a_line(error)}")
        return
    _end_because_of(of_peer, trace, cluster, tell)


def end_in_thread(error: BaseException, cluster: Cluster, tell: Callable[[str], object]) -> None:
    """Ends this process if an error that leaves `fit` in a thread says that a peer is gone.

    What runs programs in threads, as Ray and executors do, keeps their errors from any hook.
    """
    of_peer = _of_peer(error, cluster)
    if of_peer is not None and threading.current_thread() is not threading.main_thread():
        _end_because_of(of_peer, error.__traceback__, cluster, tell)


def _of_peer(error: BaseException, cluster: Cluster) -> BaseException | None:
    """Returns the error about a lost peer that an error is or came of; None if there is none."""
    return next((each for each in _chain(error) if cause_of(each, cluster)), None)


def _is_of_training(error: BaseException) -> bool:
    """Whether an error, or what it came of, has left `fit` or `evaluate`."""
    return any(
        frame.f_globals.get("__name__") == _ROUTES and frame.f_code.co_name in _CALLS
        for each in _chain(error)
        for frame, _ in traceback.walk_tb(each.__traceback__)
    )


def _end_because_of(
    of_peer: BaseException,
    trace: TracebackType | None,
    cluster: Cluster,
    tell: Callable[[str], object],
) -> NoReturn:
    if cause_of(of_peer, cluster).startswith(_has_failed(cluster)):
        end_process(FAILED)  # Another thread has said and told it.
    lost_tasks = _lost_tasks(str(of_peer), cluster) - {cluster.chief}
    if ended := exit_notice.given_by(lost_tasks, cluster):
        end_by_itself(exit_notice.describe(ended, trace), cluster, tell)
    say(describe(of_peer, cluster))
    tell(cause_of(of_peer, cluster))
    if cluster.is_chief and cluster.num_workers > 2 and not cluster.num_ps:
        # The others hear it through this process, which must not end before that.
        time.sleep(_SPREAD_SECS)
    end_process(PEER_FAILED)


def lost(cause: str) -> tf.errors.UnavailableError:
    """Returns an error about a lost peer, in which `cause_of` finds the cause."""
    return tf.errors.UnavailableError(None, None, _TOLD + cause)


def end(cause: str, cluster: Cluster) -> NoReturn:
    """Ends this process, from any thread, because of a lost peer."""
    say(message(cause, cluster))
    end_process(PEER_FAILED)


def end_by_itself(cause: str, cluster: Cluster, tell: Callable[[str], object]) -> NoReturn:
    """Ends this process, from any thread, because of itself, and tells the others."""
    launch_note.add(launch_note.FAILED)
    # Without its address, which is another one after a restart: a launcher compares the errors.
    say(f"error: {cluster.task} ends because {cause}")
    tell(f"{_has_failed(cluster)}{cause}")
    end_process(FAILED)


def _has_failed(cluster: Cluster) -> str:
    """Returns how a sentence begins by which this task tells the others why it ends."""
    return f"{cluster.describe(cluster.task)} failed: "


def describe(error: BaseException, cluster: Cluster) -> str:
    """Returns in two or three lines what a page of TensorFlow's error text says about the peers."""
    said = message(cause_of(error, cluster), cluster)
    if _TOLD in str(error):  # TensorFlow has carried it and adds nothing.
        return said
    return f"{said}\n  TensorFlow: {_in_a_line(error)}"


def message(cause: str, cluster: Cluster) -> str:
    """Returns what a task says when it ends because of another."""
    goes_on = os.environ.get(environment.WORKERS)
    remedy = "The launch starts those that are left." if goes_on else "Start the whole job again."
    return (
        f"{cluster.describe(cluster.task)} ends because {cause}\n"
        f"  Exit code {PEER_FAILED}: a peer failed, and {cluster.task} did nothing wrong. {remedy}"
    )


def cause_of(error: BaseException, cluster: Cluster) -> str:
    """Returns in a sentence what happened to a peer; "" if an error has another reason."""
    text = str(error)
    if not isinstance(error, LOST_TASK_ERRORS):
        return ""
    if _TOLD in text:
        return _first_line(text.partition(_TOLD)[2])
    if _SILENT in text:
        return _describe_silent(_lost_tasks(text, cluster), cluster)
    if _LEADER_IS_LOST.search(text):  # TensorFlow's own service is on the chief.
        who = cluster.describe(cluster.chief)
        return f"{who} does not answer: it has ended, or is halted or cut off."
    named = _lost_tasks(text, cluster)
    if not named:  # A file system or a data service may be unavailable.
        return ""
    return f"{_names(named, cluster)} is gone: the connection to it broke."


def _lost_tasks(text: str, cluster: Cluster) -> set[Task]:
    """Returns the tasks that TensorFlow's own error names as lost."""
    if _TOLD in text:
        return set()
    if _SILENT in text:
        return _tasks(text.partition(_SILENT)[2])
    named = _tasks(text) - {cluster.task}
    # A worker that the chief can do without may be named for what it could not reach.
    return {task for task in named if task.job == "ps"} or named


def _describe_silent(silent: set[Task], cluster: Cluster) -> str:
    if silent == {cluster.task}:
        return "the others have given it up: it was halted or cut off."
    return (
        f"{_names(silent - {cluster.task}, cluster)} gave no sign of life: it has ended, or is "
        "halted or cut off."
    )


def _tasks(text: str) -> set[Task]:
    return {Task(job, int(index)) for job, index in _TASK.findall(text)}


def _names(tasks: set[Task], cluster: Cluster) -> str:
    return ", ".join(sorted(cluster.describe(task) for task in tasks)) or "a peer"


def _in_a_line(error: BaseException) -> str:
    """Returns the class of an error and the one line of its text that says what is wrong."""
    _, found, reason = str(error).rpartition(_ABORTED_BY)
    line = f"{found}{_first_line(reason)}"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _first_line(text: str) -> str:
    # An error of a graph begins with a title and an indented stack.
    lines = (line for line in text.splitlines() if line and not _NO_REASON.match(line))
    return next(lines, "")[:_MOST_CHARACTERS]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those that it was raised from or in whose handling it was raised."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def tell_others(cause: str) -> None:
    """Makes the collectives of all other workers fail with the cause, at once."""
    # In a thread: without the chief, which passes it on, there may be no answer.
    thread = threading.Thread(target=_report, args=(_TOLD + cause,), daemon=True)
    thread.start()
    thread.join(_TELL_SECS)


def _report(message: str) -> None:
    with contextlib.suppress(tf.errors.OpError):  # They know it already, or cannot hear it.
        runtime.report_error(message)
