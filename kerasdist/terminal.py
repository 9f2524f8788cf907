"""Lines on stderr and the end of a process, also where nothing can be written.

A disk may be full, or the reader of a pipe gone. That must not end a thread that watches others, or
keep a process from ending.

`say` is for what a process tells about itself. Over it are `announcements.announce`, for what is
said once, and `log_lines.say`, for the course of a training, which a program may log elsewhere.
What a command or `FirstStepProof` was asked for is printed to stdout.
"""

import contextlib
import os
import sys
from typing import NoReturn


def say(line: str) -> None:
    """Prints a line to stderr, where that can be written."""
    with contextlib.suppress(OSError, ValueError):  # It is full, or closed.
        print(line, file=sys.stderr, flush=True)


def end_process(exit_code: int) -> NoReturn:
    """Ends this process from any thread, at once: an orderly end would wait for peers."""
    flush_stdout()
    os._exit(exit_code)


def leave(exit_code: int) -> NoReturn:
    """Ends the program in order; at once where what it has printed cannot be written."""
    try:
        print(end="", flush=True)
        print(end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os._exit(exit_code)  # Python would try again, and make it 120.
    sys.exit(exit_code)


def flush_stdout() -> None:
    """Writes what the program has printed, where that can be written."""
    with contextlib.suppress(OSError, ValueError):
        print(end="", flush=True)  # Also where there is no stdout.
