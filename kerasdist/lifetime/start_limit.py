"""Limits how long TensorFlow may take to connect the cluster."""

import os
import sys
from subprocess import PIPE, Popen

from kerasdist.cluster import Cluster
from kerasdist.lifetime import peer_failure

# Waits in a process of its own: TensorFlow holds Python's lock while it waits for a peer. A process
# that SIGUSR1 ends has exit code 138; only one with a handler of its own for that survives it.
_WATCHER = """
import os, select, signal, sys

def stop(*_):
    raise KeyboardInterrupt

def is_over(secs):
    return bool(select.select([0], [], [], secs)[0])

pid, secs, message = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
signals = [signal.SIGUSR1, signal.SIGKILL]
try:
    signal.signal(signal.SIGTERM, stop)
    if is_over(secs):
        sys.exit()
except KeyboardInterrupt:  # It went to all of the group, and TensorFlow may be deaf to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_over(2):
        sys.exit()
    message = "Stopped, while TensorFlow was connecting the cluster."
    signals = [signal.SIGKILL]
try:
    print(message, file=sys.stderr, flush=True)
except OSError:
    pass  # The disk is full.
for number in signals:
    os.kill(pid, number)
    if is_over(2):
        break
"""


class StartLimit:
    """A context that ends the process with exit code 138 if TensorFlow does not start.

    A worker that dies after the preflight, before TensorFlow has connected it, leaves TensorFlow on
    the others waiting for an hour, deaf to Ctrl-C and TERM: these, too, end the process here.

    Args:
        cluster: The workers, and which of them this process is.
        secs: The limit.
    """

    def __init__(self, cluster: Cluster, secs: float):
        cause = (
            f"TensorFlow did not connect the cluster within {secs:g} s, although every task had "
            "answered before. Look in the logs of the others for one that ended meanwhile."
        )
        self._arguments = [str(os.getpid()), str(secs), peer_failure.message(cause, cluster)]

    def __enter__(self):
        command = [sys.executable, "-I", "-S", "-c", _WATCHER, *self._arguments]
        # Ends by itself when this process does, for then its input ends.
        self._watcher = Popen(command, stdin=PIPE)

    def __exit__(self, *error: object):
        self._watcher.communicate()
