"""A store of keys and values that all workers share.

It is that of TensorFlow's coordination service, apart from its collectives: nobody has to wait for
what a worker posts, and whoever waits does so for a limited time.
"""

import time
from collections.abc import Callable

from kerasdist.cluster import Cluster
from kerasdist.private import runtime

# Between two looks Python can react to Ctrl-C.
_LOOK_SECS = 0.2
_READ_SECS = 0.05


def post(key: str) -> None:
    """Posts a key without a value; once more it changes nothing."""
    runtime.post(f"kerasdist: {key}")


def is_posted(
    key: str, *, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Waits until a worker has posted a key; returns whether one has."""
    return first_posted(key, timeout_secs=timeout_secs, clock=clock) is not None


def first_posted(
    *keys: str, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> str | None:
    """Waits until one of several keys is posted; returns it, or None if none is."""
    deadline = clock() + timeout_secs
    while True:
        for key in keys:
            if runtime.is_posted(f"kerasdist: {key}", secs=_LOOK_SECS):
                return key
        if clock() > deadline:
            return None


def wait_for_all(
    cluster: Cluster, key: str, *, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Posts a key and waits until all workers have posted it.

    Args:
        cluster: Of synchronous workers, all of which call this.
        key: What has been reached, in words; a different text at each call, but one after a
            TimeoutError.
        timeout_secs: How long to wait for all of them.
        clock: Seconds.

    Raises:
        TimeoutError: One has not posted it; names the worker and the key.
    """
    post(f"{key} of {cluster.task}")
    deadline = clock() + timeout_secs
    for task in cluster.addresses:
        left = max(0.0, deadline - clock())
        if not is_posted(f"{key} of {task}", timeout_secs=left, clock=clock):
            raise TimeoutError(
                f"{cluster.task} waited {timeout_secs:g} s at {key} for "
                f"{cluster.describe(task)}, which has not got there. Every worker must call it, in "
                "the same order."
            )


def wait_for_text(
    key: str, *, timeout_secs: float, clock: Callable[[], float] = time.monotonic
) -> str:
    """Waits until a worker has posted a text under a key; returns it, or "" if none has.

    Unlike `read`, it raises TensorFlow's error if the chief is gone.
    """
    deadline = clock() + timeout_secs
    while is_posted(key, timeout_secs=deadline - clock(), clock=clock):
        if (text := read(key)) or clock() > deadline:
            return text
    return ""


def replace(key: str, text: str) -> None:
    """Posts a text under a key, in place of the one before."""
    runtime.replace(f"kerasdist: {key}", text)


def read(key: str) -> str:
    """Returns the text under a key; "" if there is none."""
    return runtime.read(f"kerasdist: {key}", secs=_READ_SECS)
