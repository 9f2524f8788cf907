"""Clusters of a test whose tasks are copies of a Python that has already imported TensorFlow.

Importing is more than half of what a small training costs, and a test on several workers pays for
it in each task. Here one process imports, and the launcher and its tasks are forked from it: real
processes of our own launcher, which begin a few seconds later in their life. Two things differ from
fresh interpreters: all tasks have one hash seed, and variables of the environment that are read
while importing have no effect. So tests of starting and ending use `testing.run_cluster`, and so do
those that check many promises in one cluster.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import types
from multiprocessing.connection import Connection, Pipe
from unittest import mock

import cloudpickle
import numpy as np

from kerasdist import testing
from kerasdist.launcher import task_process

_PR_SET_PDEATHSIG = 1  # From linux/prctl.h.
_FILES = 1024


class ForkServer:
    """A process that has imported TensorFlow, and forks the launcher of a cluster when asked."""

    def __init__(self):
        self._lock = threading.Lock()  # One cluster at a time.
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the test to handle.
            )

    def run_cluster(self, program, settings) -> list[testing.TaskOutput]:
        """Returns what `kerasdist.testing.run_cluster` returns, or raises what that raises."""
        with self._lock:
            self._connection.send((dict(os.environ), os.getcwd(), sys.path))
            self._connection.send_bytes(cloudpickle.dumps((program, settings)))
            launcher = self._connection.recv()
            try:
                result = pickle.loads(self._connection.recv_bytes())
            except BaseException:  # The test takes too long, or is interrupted.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(launcher, signal.SIGTERM)
                self._connection.recv_bytes()  # It is no answer to the next.
                raise
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.wait()


@functools.cache
def _server() -> ForkServer:
    """Returns the one of this process of pytest."""
    server = ForkServer()
    atexit.register(server.stop)
    return server


def run_cluster(program, **settings) -> list[testing.TaskOutput]:
    """Does what `kerasdist.testing.run_cluster` does for a function, with tasks that are forked."""
    return _server().run_cluster(program, settings)


def _serve(connection: Connection) -> None:
    import keras
    import tensorflow

    import kerasdist

    # Each of them loads its modules when it is asked for a name.
    for module, name in ((tensorflow, "keras"), (keras, "Model"), (kerasdist, "make_strategy")):
        getattr(module, name)
    gc.collect()
    gc.freeze()
    while True:
        try:
            place, request = connection.recv(), connection.recv_bytes()
        except EOFError:  # The tests are over.
            return
        launcher = os.fork()
        if not launcher:
            _launch(connection, place, request)
        os.waitpid(launcher, 0)


def _launch(connection: Connection, place, request: bytes) -> None:
    """Is the process of the launcher: runs the cluster, answers, and ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection.send(os.getpid())
    environ, folder, path = place
    _set_environ(environ)
    os.chdir(folder)
    sys.path[:] = path
    names = ("DEVNULL", "STDOUT", "TimeoutExpired")
    known = {name: getattr(subprocess, name) for name in names}
    forked = types.SimpleNamespace(Popen=_ForkedTask, **known)
    try:
        program, settings = pickle.loads(request)
        with mock.patch.object(task_process, "subprocess", forked):
            answer = testing.run_cluster(program, **settings)
    except BaseException as error:  # It is raised in the test.
        answer = error
    connection.send_bytes(cloudpickle.dumps(answer))
    os._exit(0)


class _ForkedTask:
    """In the place of `subprocess.Popen`, for the tasks of a launcher that is forked itself."""

    def __init__(self, command, *, stdout, env, **_):
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            _become(command, env, stdout.fileno())

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self, timeout_secs: float) -> None:
        """Waits for the end of a task that has been killed."""
        self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become(command, environ, output: int) -> None:
    """Does in this process what the command would do in one of its own, and ends it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, _FILES)
    _set_environ(environ)
    np.random.seed()  # All copies would draw the same; Python's own generator knows of forks.
    # As of Python without a buffer: the last lines before a crash must reach the log.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    try:
        with mock.patch.object(os, "execvp", _run_python):  # What `task_entry` ends with.
            _run_python(command[0], command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    ctypes.pythonapi.Py_Exit(code)


def _run_python(_, command) -> None:
    """Runs `python [flags] script arguments` in this process."""
    script = next(index for index, word in enumerate(command) if word.endswith(".py"))
    sys.argv = command[script:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    runpy.run_path(command[script], run_name="__main__")


def _set_environ(environ) -> None:
    os.environ.clear()
    os.environ.update(environ)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
