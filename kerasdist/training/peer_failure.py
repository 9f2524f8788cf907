"""What a worker says and does when another one has died: exit code 138, and who it was.

TensorFlow reports a lost peer as one of several errors, with a page of text from its transport.
The exit code tells a launcher or Kubernetes that this worker did nothing wrong and may be started
again.
"""

import os
import re
import signal
import sys
import threading

import tensorflow as tf

from kerasdist.cluster import Cluster, Task

EXIT_CODE = 138
_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
)
_TASK = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)")


def handle(cluster: Cluster) -> None:
    """Makes this process end with exit code 138 where an error says that a peer is gone."""
    previous = sys.excepthook

    def hook(error_class, error, traceback):
        if not isinstance(error, _ERRORS):
            previous(error_class, error, traceback)
            return
        print(describe(str(error), cluster), file=sys.stderr, flush=True)
        sys.stdout.flush()
        # An orderly end would wait for the peers.
        os._exit(EXIT_CODE)

    sys.excepthook = hook


def describe(text: str, cluster: Cluster) -> str:
    """Returns in two lines what a page of TensorFlow's error text says of the peers."""
    named = {Task(job, int(index)) for job, index in _TASK.findall(text)} - {cluster.task}
    who = ", ".join(sorted(map(str, named))) or "a peer that TensorFlow does not name"
    first_line = text.strip().splitlines()[0][:200] if text.strip() else "no message"
    return (
        f"{cluster.task} ends because it lost {who}. Look at the log of the one that ended first: "
        f"its error is the cause. Exit code {EXIT_CODE} (a peer failed; start the whole job again)."
        f"\n  TensorFlow: {first_line}"
    )


class TerminationKept:
    """A context that puts the handler of SIGTERM back.

    TensorFlow takes the signal when a strategy over several workers is made, and then does nothing
    with it.
    """

    def __enter__(self):
        self._handler = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *error):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handler or signal.SIG_DFL)
