"""Work beside the program that keeps no process from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def in_background(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Runs a function in a thread: Ctrl-C cannot interrupt the look-up of a name.

    The thread is a daemon, so it keeps no process from ending.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # Whoever waits for the future would wait forever.  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
