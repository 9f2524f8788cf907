"""Lines for the person at the terminal, each said once by a process."""

from kerasdist.support import memory
from kerasdist.support.terminal import say


def announce(line: str) -> None:
    """Prints a line, unless this process has printed it before."""
    if memory.PROCESS.say_once(line):
        say(line)
