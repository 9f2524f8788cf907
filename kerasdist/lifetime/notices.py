"""Notices of the workers to each other, by name.

They go through TensorFlow's coordination service, not through its collectives: nobody has to wait
for what a worker posts, and whoever waits does so for a limited time.
"""

import time
from collections.abc import Callable

from kerasdist.cluster import Cluster
from kerasdist.private import runtime

# Between two looks Python can react to Ctrl-C.
_LOOK_SECS = 0.2
_READ_SECS = 0.05


def post(notice: str) -> None:
    """Posts a notice; once more it changes nothing."""
    runtime.post(f"kerasdist: {notice}")


def is_posted(
    notice: str, *, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Waits until a worker has posted a notice; returns whether one has."""
    return first_posted(notice, timeout_secs=timeout_secs, clock=clock) is not None


def first_posted(
    *notices: str, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> str | None:
    """Waits until one of several notices is posted; returns it, or None if none is."""
    deadline = clock() + timeout_secs
    while True:
        for notice in notices:
            if runtime.is_posted(f"kerasdist: {notice}", secs=_LOOK_SECS):
                return notice
        if clock() > deadline:
            return None


def wait_for_all(
    cluster: Cluster,
    notice: str,
    *,
    timeout_secs: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Posts a notice and waits until all workers have posted it.

    Args:
        cluster: Of synchronous workers, all of which call this.
        notice: What has been reached, in words; a different text at each call, but one after a
            TimeoutError.
        timeout_secs: How long to wait for all of them.
        clock: Seconds.

    Raises:
        TimeoutError: One has not posted it; names the worker and the notice.
    """
    post(f"{notice} of {cluster.task}")
    deadline = clock() + timeout_secs
    for task in cluster.addresses:
        left = max(0.0, deadline - clock())
        if not is_posted(f"{notice} of {task}", timeout_secs=left, clock=clock):
            raise TimeoutError(
                f"{cluster.task} waited {timeout_secs:g} s at {notice} for "
                f"{cluster.describe(task)}, which has not got there. Every worker must call it, in "
                "the same order."
            )


def wait_for_text(
    notice: str, *, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> str:
    """Waits until a worker has posted a text under a name; returns it, or "" if none has.

    Unlike `read`, it raises TensorFlow's error if the chief is gone.
    """
    deadline = clock() + timeout_secs
    while is_posted(notice, timeout_secs=deadline - clock(), clock=clock):
        if (text := read(notice)) or clock() > deadline:
            return text
    return ""


def replace(notice: str, text: str) -> None:
    """Posts a text under a name, in place of the one before."""
    runtime.replace(f"kerasdist: {notice}", text)


def read(notice: str) -> str:
    """Returns the text under a name; "" if there is none."""
    return runtime.read(f"kerasdist: {notice}", secs=_READ_SECS)
