"""Which lines of a task are TensorFlow's own, written below Python: they stay in its log alone.

TensorFlow writes some fifteen of them before the first step of every task, and pages of them if a
peer is lost. What a person must know comes as a Python error, or a task says it in a sentence.
"""

import re

# As in: I0000 00:00:1795350172.295946    5628 port.cc:153] oneDNN custom operations are on.
_LINE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ (([\w.]+)\.(?:cc|h|cu|cpp):\d+)\] ")
# No driver if there is no GPU; and the connections between tasks, which the tasks report better.
_SAID_BETTER = re.compile(
    r"cuda_platform|local_rendezvous|\w*collective\w*|ring_alg|coordination_\w+|grpc_\w+"
)
_CONTINUATION = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|To enable the following instructions: "
    r"|/job:\w+/replica:\d+/task:\d+$"
    r"|The error could be from a previous operation\. Restart your program to reset\."
    r"|Additional GRPC error information from remote target "
    r"|:UNKNOWN:Error received from peer "
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
    return found[1] != "F" if found else bool(_CONTINUATION.match(line))
