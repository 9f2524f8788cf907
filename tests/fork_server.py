"""Clusters of a test whose tasks are copies of a Python that has already imported TensorFlow.

Importing is more than half of what a small training costs, and a test on several workers pays for
it in each task. Here one process imports, and the launcher and its tasks are forked from it: real
processes of our own launcher, which begin a few seconds later in their life. Two things differ from
fresh interpreters: all tasks have one hash seed, and variables of the environment that are read
while importing have no effect. So the tests of the launcher start fresh ones, and so do those that
check many promises in one cluster.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import pickle
import queue
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from multiprocessing.connection import Connection, Pipe
from typing import Any
from unittest import mock

import cloudpickle
import numpy as np

from kerasdist import testing
from kerasdist.launcher.launch import signals_end_the_launch
from kerasdist.processes import task_process
from kerasdist.support.exit_codes import SIGNALED

_END_SECS = 60  # For the end of a cluster that a test does not wait for.
_PR_SET_PDEATHSIG = 1  # From linux/prctl.h.
_FILES = 1024


class ForkServer:
    """A process that has imported TensorFlow, and forks one that calls a function when asked."""

    def __init__(self):
        self.is_idle = True  # After an error that is not the function's it never is again.
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the test to handle.
            )

    def call(self, function) -> Any:
        """Returns what a function returns in a process that forks what it starts, or raises it.

        It is for one thread at a time.

        Raises:
            RuntimeError: The process has ended without an answer; names its exit code.
        """
        request = cloudpickle.dumps(function)
        self.is_idle = False
        try:
            answer = self._answer_to(request)
        except EOFError as error:
            code = self._process.wait(_END_SECS)
            raise RuntimeError(f"{function} ended with exit code {code}.") from error
        self.is_idle = True
        answer = pickle.loads(answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _answer_to(self, request: bytes) -> bytes:
        self._connection.send((dict(os.environ), os.getcwd(), sys.path))
        self._connection.send_bytes(request)
        process = self._connection.recv()
        try:
            return self._connection.recv_bytes()
        except BaseException:  # The test takes too long, or is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            if not self._connection.poll(_END_SECS):
                self._process.kill()
            raise

    def stop(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.wait()


_idle: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()


def call(function) -> Any:
    """Calls it in a server that is idle; there come to be as many as threads call at once."""
    try:
        server = _idle.get_nowait()
    except queue.Empty:
        server = ForkServer()
    try:
        return server.call(function)
    finally:
        if server.is_idle:
            _idle.put(server)
        else:
            server.stop()


def run_cluster(program, **settings) -> list[testing.TaskOutput]:
    """Does what `kerasdist.testing.run_cluster` does, with tasks that are forked."""
    return call(functools.partial(testing.run_cluster, program, **settings))


def run(command, *, cwd, env, timeout_secs: float, given: str = "") -> tuple[int, str]:
    """Runs a command of Python, and returns its exit code and all that it wrote.

    Args:
        command: As of `subprocess.run`.
        cwd: The directory that it runs in.
        env: All variables.
        timeout_secs: Time until it is killed, and a `TimeoutError` is raised.
        given: What it reads from stdin.
    """
    ((code, output),) = call(functools.partial(_run, command, cwd, [env], timeout_secs, given))
    return code, output


def run_each(command, *, cwd, envs, timeout_secs: float) -> list[tuple[int, str]]:
    """Runs a command of Python once with each of several environments, at the same time.

    Returns:
        The exit code of each, and all that it wrote.
    """
    return call(functools.partial(_run, command, cwd, envs, timeout_secs, ""))


@atexit.register
def stop() -> None:
    """Ends the servers, for tests that look at what processes there are."""
    while not _idle.empty():
        _idle.get().stop()


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
        process = os.fork()
        if not process:
            _answer(connection, place, request)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:  # There is no answer, or half of one.
            sys.exit(SIGNALED - code if code < 0 else code)


def _answer(connection: Connection, place, request: bytes) -> None:
    """Is the process of a request: calls its function, answers, and ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    connection.send(os.getpid())
    environ, folder, path = place
    _set_environ(environ)
    os.chdir(folder)
    sys.path[:] = path
    names = ("DEVNULL", "STDOUT", "TimeoutExpired")
    known = {name: getattr(subprocess, name) for name in names}
    forked = types.SimpleNamespace(Popen=_start, **known)
    try:
        function = pickle.loads(request)
        with signals_end_the_launch(), mock.patch.object(task_process, "subprocess", forked):
            answer = function()
    except BaseException as error:  # It is raised in the test.
        answer = error
    try:
        connection.send_bytes(cloudpickle.dumps(answer))
    except Exception as error:
        error.add_note(f"The answer that cannot be sent: {answer!r}")
        connection.send_bytes(cloudpickle.dumps(error))
    os._exit(0)


def _run(command, cwd, envs, timeout_secs, given) -> list[tuple[int, str]]:
    os.chdir(cwd)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(command, env, given)) for env in envs]
        end = time.monotonic() + timeout_secs
        while (codes := [task.poll() for task, _ in started]) and None in codes:
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        for _, output in started:
            output.seek(0)
        outputs = [output.read() for _, output in started]
    if None in codes:
        written = "\n".join(outputs)
        raise TimeoutError(f"{command}: longer than {timeout_secs:g} s\n{written}")
    return list(zip(codes, outputs, strict=True))


@contextlib.contextmanager
def _started(command, env, given):
    """Starts a process that ends with the block, and opens the file that it writes."""
    with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile("w+") as output:
        stdin.write(given)
        stdin.seek(0)
        task = _ForkedTask(command, stdin=stdin.fileno(), stdout=output, env=env)
        try:
            yield task, output
        finally:
            if task.returncode is None:
                os.killpg(task.pid, signal.SIGKILL)


def _start(command, **arguments):
    """Stands in the place of `subprocess.Popen`."""
    start = subprocess.Popen if _has_tensorflow_started() else _ForkedTask
    return start(command, **arguments)


def _has_tensorflow_started() -> bool:
    """Whether this process has threads of TensorFlow's, which a copy of it would lack."""
    import tensorflow as tf

    number = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(number + 1)
    except RuntimeError:
        return True
    tf.config.threading.set_inter_op_parallelism_threads(number)
    return False


class _ForkedTask:
    """A process that is forked."""

    def __init__(self, command, *, stdin, stdout, env, **_):
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            _become(command, env, stdin, stdout.fileno())

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


def _become(command, environ, stdin: int, output: int) -> None:
    """Does in this process what the command would do in one of its own, and ends it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if stdin == subprocess.DEVNULL:
        stdin = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    os.closerange(3, _FILES)
    _set_environ(environ)
    np.random.seed()  # All copies would draw the same; Python's own generator knows of forks.
    sys.stdin = os.fdopen(0, closefd=False)
    # As of Python without a buffer: the last lines before a crash must reach the log.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    try:
        with mock.patch.object(os, "execvp", _run_python):  # What `task_entry` ends with.
            _run_python(command[0], command)
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    ctypes.pythonapi.Py_Exit(code)


def _run_python(program, command) -> None:
    """Runs `python [flags] (-c source | -m module | script) arguments` in this process."""
    if not os.path.basename(program).startswith("python"):
        os.execv(shutil.which(program) or program, command)
    sys.orig_argv = list(command)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    is_flag = [word.startswith("-") and word not in ("-c", "-m") for word in command[1:]]
    match command[1 + is_flag.index(False) :]:
        case ["-c", source, *arguments]:
            sys.argv = ["-c", *arguments]
            sys.path.insert(0, "")
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(source, "<string>", "exec"), vars(main))
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments]:
            sys.argv = [script, *arguments]
            if "-P" not in command:
                sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
            runpy.run_path(script, run_name="__main__")


def _set_environ(environ) -> None:
    os.environ.clear()
    os.environ.update(environ)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
