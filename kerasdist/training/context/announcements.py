"""Lines for the person at the terminal, each said once by a process."""

from kerasdist.support.terminal import say

_said: set[str] = set()


def announce(line: str) -> None:
    """Prints a line, unless this process has printed it before."""
    if line not in _said:
        _said.add(line)
        say(line)
