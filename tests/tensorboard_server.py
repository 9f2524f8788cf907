"""TensorBoard, asked over its own interface what it shows of a run."""

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator


@contextlib.contextmanager
def served(folder, *, python=sys.executable) -> Generator[Callable]:
    """Serves a run; yields a function that returns what a plugin answers, from JSON.

    Args:
        folder: Of the run.
        python: Of the environment that TensorBoard is in.

    Example:
        with served(folder) as ask:
            ask("scalars/scalars", run="train", tag="loss")
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port)]
    with subprocess.Popen(
        [*command, "--host=127.0.0.1", "--load_fast=false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:

        def ask(path, **query):
            url = f"http://127.0.0.1:{port}/data/plugin/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                content = answer.read()
                if answer.headers["Content-Encoding"] == "gzip":  # Of some plugins, always.
                    content = gzip.decompress(content)
                return json.loads(content)

        try:
            yield ask
        finally:
            process.kill()


def wait_until(is_loaded: Callable[[], bool], secs=90) -> None:
    """Waits until TensorBoard has started and loaded what is looked for."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if is_loaded():
                return
        time.sleep(0.3)
    raise TimeoutError("TensorBoard has not loaded the run.")
