"""Calls functions when the process of a task ends, but not when one that it has forked does.

A program may fork in the middle of a training, for a pool or by hand. Its child has the memory of
the task without its threads, and must not speak for it, or wait for others.
"""

import atexit
import os
from collections.abc import Callable


def at_end(function: Callable, *arguments: object) -> None:
    """Calls a function with these arguments when this process ends."""
    process_id = os.getpid()

    def call():
        if os.getpid() == process_id:
            function(*arguments)

    atexit.register(call)
