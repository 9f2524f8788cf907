"""Lines for the person at the terminal, each said once by a process."""

import sys

_said: set[str] = set()


def announce(line: str) -> None:
    """Prints a line, unless this process has printed it before."""
    if line not in _said:
        _said.add(line)
        print(line, file=sys.stderr, flush=True)
