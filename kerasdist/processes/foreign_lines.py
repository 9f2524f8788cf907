"""Tells which lines of a task are TensorFlow's own: they stay in its log alone.

TensorFlow writes some fifteen of them before the first step of every task, and pages of them if a
peer is lost. What a person must know comes as a Python error, or a task says it in a sentence.
"""

import re

# An example: I0000 00:00:1795350172.295946    5628 port.cc:153] oneDNN custom operations are on.
_LINE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ (([\w.]+)\.(?:cc|h|cu|cpp):\d+)\] ")
# No driver if there is no GPU; an optimization of a graph that is left out, as in a GAN; and the
# connections between tasks, which the tasks report better.
_SAID_BETTER = re.compile(
    r"cuda_platform|meta_optimizer|local_rendezvous|\w*collective\w*|ring_alg|coordination_\w+|grpc_\w+"
)
# Its strategies note these in Python, where the program lets absl show it: by the file,
# as in I1128 12:56:48.810051 140353533959040 mirrored_strategy.py:423] Using ..., or by the text.
_PYTHON_NOTE = re.compile(
    r"I\d{4} \d\d:\d\d:[\d.]+ +\d+ (collective_all_reduce_strategy|mirrored_strategy"
    r"|parameter_server_strategy(_v2)?|cross_device_ops|distribute_coordinator"
    r"|cluster_coordinator)\.py:\d+\] "
    r"|INFO:tensorflow:(Using MirroredStrategy with |Enabled multi-worker collective ops with "
    r"|(Single-worker )?MultiWorkerMirroredStrategy with |Check health not enabled"
    r"|Collective all_reduce |Collective batch_all_gather|batch_all_reduce: |Reduce to /"
    r"|Gather to /|`tf\.distribute\.experimental\.ParameterServerStrategy` is initialized"
    r"|ParameterServerStrategy |Number of GPUs on workers: |\S+ is now connecting to cluster "
    r"|Waiting for all global closures |Waiting for the cluster, |Cluster is ready)"
)
_CONTINUATION = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable the following instructions: "
    r"|/job:\w+/replica:\d+/task:\d+$"
    r"|The error could be from a previous operation\. Restart your program to reset\."
    r"|Additional GRPC error information from remote target "
    r"|:UNKNOWN:Error received from peer "
    r"|The tasks have crashed\. Check the task logs for an earlier error, or scheduler events "
    r"|This is usually caused by an earlier error during execution\. Check the logs of \(a\) this "
    r"|This could happen if the remote target has been disconnected from the client\."
    r"|\s*\[\[\{\{node "
)


class ForeignLines:
    """Tells which lines need not be shown, over all tasks of a launch.

    Notes never are. A warning or an error is shown once for each place in TensorFlow that it comes
    from, unless it is one that every run has. What ends a process is always shown.
    """

    def __init__(self):
        self._shown: set[str] = set()

    def hide(self, line: str) -> bool:
        """Returns whether a line is not shown; call it once for each."""
        if not is_foreign(line):
            return False
        found = _LINE.match(line)
        if not found or found[1] == "I" or _SAID_BETTER.fullmatch(found[3]):
            return True
        is_new = found[2] not in self._shown
        self._shown.add(found[2])
        return not is_new


def is_foreign(line: str) -> bool:
    """Returns whether a line is TensorFlow's own, and not of what ends the process."""
    found = _LINE.match(line)
    if found:
        return found[1] != "F"
    return bool(_CONTINUATION.match(line) or _PYTHON_NOTE.match(line))
