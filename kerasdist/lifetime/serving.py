"""Serves the chief, as a worker or ps task does, and ends with it.

TensorFlow's server runs what the chief sends. Left alone, it would go on for ever.
"""

import concurrent.futures
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure, remote_recordings, shutdown_message
from kerasdist.lifetime.tensorflow_cluster import cluster_spec
from kerasdist.messages.tensorflow_server import find_problem
from kerasdist.support import launch_note
from kerasdist.support.background import in_background
from kerasdist.support.exit_codes import PEER_FAILED
from kerasdist.support.terminal import flush_stdout, leave, say

_NUM_THREADS = "TF_NUM_INTEROP_THREADS"
_POLL_SECS = 1.0


def serve(
    cluster: Cluster, *, num_gpus: int, chief_timeout_secs: float, wait_for_chief: bool
) -> NoReturn:
    """Serves the chief and ends the process with it.

    Args:
        cluster: This process is one of its workers or ps tasks.
        num_gpus: How many GPUs a worker uses, with a replica on each. A ps uses none.
        chief_timeout_secs: How long the chief may be gone or silent.
        wait_for_chief: Whether the program then starts over and waits for the chief to come back.

    Raises:
        ValueError: TF_NUM_INTEROP_THREADS is not a number.
        SystemExit: The job is over, with code 0; or the chief failed or is gone, with 138.
    """
    _use_gpus(num_gpus if cluster.task.job == "worker" else 0)
    server = tf.distribute.Server(
        cluster_spec(cluster),
        job_name=cluster.task.job,
        task_index=cluster.task.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=_num_threads(cluster)),
    )
    told = in_background(_hear, server.target, cluster.task)
    lost = in_background(_watch_chief, cluster, chief_timeout_secs)
    recording = in_background(remote_recordings.answer_requests, server.target, cluster.task)
    recording.add_done_callback(functools.partial(_tell_of_error, cluster.task))
    concurrent.futures.wait([told, lost], return_when=concurrent.futures.FIRST_COMPLETED)
    if not told.done() and wait_for_chief:
        _start_over(cluster, lost.result())
    cause = told.result() if told.done() else lost.result()
    flush_stdout()
    end = launch_note.line_of(cluster.task, "the job is over.")
    say(peer_failure.message(cause, cluster) if cause else end)
    leave(PEER_FAILED if cause else 0)


def _num_threads(cluster: Cluster) -> int:
    """Returns how many operations the server may run at a time: more than there are tasks.

    TensorFlow takes the number of cores. On one core, an operation that waits for another task
    would hold the only thread, and the step would never end.
    """
    chosen = os.environ.get(_NUM_THREADS) or os.cpu_count() or 1
    try:
        return max(int(chosen), len(cluster.addresses) + 1)
    except ValueError as error:
        raise ValueError(
            f"{_NUM_THREADS} must be a number. Received: {_NUM_THREADS}={chosen!r}. Leave it out "
            "to have as many as cores."
        ) from error


def _tell_of_error(task: Task, recording: concurrent.futures.Future) -> None:
    """Says why a task records nothing any more, which only the chief's next trace would show."""
    if error := recording.exception():
        say(f"{task} records no more traces: {type(error).__name__}: {error}")


def _use_gpus(number: int) -> None:
    # TensorFlow would use all that it finds and, also on ps tasks, take their memory.
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:number], "GPU")


def _hear(target: str, task: Task, sleep: Callable[[float], object] = time.sleep) -> str:
    """Returns what the chief says at its end.

    An error belongs to the session that listens, and says nothing about the job.
    """
    while True:
        with contextlib.suppress(tf.errors.OpError):
            return shutdown_message.receive(target, task)
        sleep(_POLL_SECS)


def _watch_chief(
    cluster: Cluster,
    timeout_secs: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Returns what is wrong with the chief, once that has lasted for some time."""
    address = cluster.addresses[cluster.chief]
    answered_at = clock()
    while True:
        problem = find_problem(address)
        now = clock()
        if not problem:
            answered_at = now
        elif now >= answered_at + timeout_secs:
            chief = cluster.describe(cluster.chief)
            return f"{chief} is gone, for {timeout_secs:g} s: {problem}."
        sleep(_POLL_SECS)


def _start_over(cluster: Cluster, cause: str) -> NoReturn:
    flush_stdout()
    say(f"{cluster.task} starts over and waits for the chief: {cause}")
    # The servers that the chief meets must be new ones.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
