"""A context of the whole process that several threads may be in at once.

What one of them puts back, another one may just have changed. So the first one to enter changes it,
and the last one to leave puts it back:

    quiet = SharedContext(lambda: contextlib.redirect_stdout(io.StringIO()))
    with quiet:                             # In each thread.
        ...
"""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class SharedContext:
    """Enters a context with the first thread, and leaves it with the last one.

    Args:
        make: Returns the context.
    """

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager]):
        self._make = make
        self._lock = threading.Lock()
        self._num_inside = 0
        self._stack = contextlib.ExitStack()

    def unless_entered(self, act: Callable[[], Result], *, but_for: int = 0) -> Result | None:
        """Returns what `act` does, and None, without it, where a thread is inside.

        Args:
            act: No thread enters or leaves while it runs.
            but_for: How often the threads that ask for it are inside themselves.
        """
        with self._lock:
            return act() if self._num_inside <= but_for else None

    def __enter__(self):
        with self._lock:
            if not self._num_inside:
                self._stack.enter_context(self._make())
            self._num_inside += 1

    def __exit__(self, *error: object):
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                self._stack.close()
