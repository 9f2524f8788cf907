"""Lines on stderr and the end of a process, even if nothing can be written.

A disk may be full, or the reader of a pipe gone. That must not end a thread that watches others, or
keep a process from ending.

`say` is for what a process reports about itself. Built on it are `announce`, for what is said
once, and `log_lines.say`, for the progress of a training, which may be logged elsewhere.
The results of commands and of `FirstStepProof` are printed to stdout.
"""

import contextlib
import os
import sys
from typing import NoReturn

from kerasdist.support import environment, memory


def say(line: str) -> None:
    """Prints a line to stderr, if that can be written."""
    begin_line()
    with contextlib.suppress(OSError, ValueError):  # It is full, or closed.
        print(line, file=sys.stderr, flush=True)


def announce(line: str) -> None:
    """Prints a line to stderr, unless this process has printed it before."""
    if memory.PROCESS.say_once(line):
        say(line)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    # Programs put objects of their own here that only write.
    return getattr(sys.stdout, "isatty", lambda: False)()


def is_shown_by_launch() -> bool:
    """Whether stdout is the log whose last line `launch` shows in a terminal."""
    if environment.TERMINAL not in os.environ:
        return False
    # What the task starts may inherit the variable, and write elsewhere.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return identity_of(os.fstat(sys.stdout.fileno())) == os.environ[environment.TERMINAL]
    return False


def identity_of(file: os.stat_result) -> str:
    """Returns what tells a file from all others, as the value of KERASDIST_TERMINAL."""
    return f"{file.st_dev}:{file.st_ino}"


def note_line(*, is_open: bool) -> None:
    """Notes whether the line on stdout is one that goes on, as that of a progress bar."""
    memory.PROCESS.open_stdout = sys.stdout if is_open else None


def begin_line() -> None:
    """Ends the line of a progress bar on stdout, so that what comes next has one of its own."""
    open_stdout = memory.PROCESS.open_stdout
    if open_stdout is not None and open_stdout is sys.stdout:
        note_line(is_open=False)
        with contextlib.suppress(OSError, ValueError):
            print(flush=True)


def end_process(exit_code: int) -> NoReturn:
    """Ends this process from any thread, at once: an orderly end would wait for peers."""
    flush_stdout()
    os._exit(exit_code)


def leave(exit_code: int) -> NoReturn:
    """Ends the program in order, or at once if what it has printed cannot be written."""
    try:
        print(end="", flush=True)
        print(end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os._exit(exit_code)  # Python would try again, and make it 120.
    sys.exit(exit_code)


def flush_stdout() -> None:
    """Writes what the program has printed, if that is possible."""
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)  # Also where there is no stdout.
