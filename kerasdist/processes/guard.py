"""The guard: a small process that keeps the cluster's network, and cleans up at the end.

It notices when the launcher ends, for whatever reason, because a pipe from there closes. Then it
kills what is left of the tasks and removes the launch's private folder. This file is a script as
well as a module: the guard starts before the tasks do, so it imports next to nothing.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ISOLATED = "isolated"
# The same name is in kerasdist/support/environment.py, which a script cannot import.
LAUNCH_FOLDER = "KERASDIST_LAUNCH_FOLDER"

KILL_SECS = 5.0  # A process that survives SIGKILL for so long hangs in the kernel.
_START_SECS = 60.0  # It takes a tenth of a second, unless it is halted.
_END_SECS = 2 * KILL_SECS

_CLONE_NEWUSER = 0x10000000  # linux/sched.h has it; os.unshare and its flags came with Python 3.12.
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h has both.
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


class Guard:
    """Holds what a launch needs from its start to its end; use it in a `with` statement.

    Args:
        isolate: Whether the tasks should have their own network.

    Attributes:
        run_id: A name of the launch: start time and a random part.
        pid: Process whose network the tasks join.
        network: "isolated", or the reason why the tasks share the network of the machine.
        folder: A private directory (mode 0700) that is gone after the launch. All processes that
            have it as their KERASDIST_LAUNCH_FOLDER are killed then.

    Raises:
        RuntimeError: The guard did not start.
    """

    def __init__(self, *, isolate: bool):
        self.run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
        # One inside another launch's is gone with it, however that one ends.
        parent = os.environ.get(LAUNCH_FOLDER) or tempfile.gettempdir()
        command = [sys.executable, "-P", __file__, parent]
        self._process = subprocess.Popen(
            [*command, ISOLATED if isolate else "host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C and a closed terminal are the launcher's to handle.
            text=True,
        )
        self.pid = self._process.pid
        folder, self.network = self._answer()
        self.folder = Path(folder)

    def _answer(self) -> list[str]:
        assert self._process.stdout
        is_there, _, _ = select.select([self._process.stdout], [], [], _START_SECS)
        answer = self._process.stdout.readline().strip() if is_there else ""
        if answer:
            return json.loads(answer)
        self._process.kill()
        raise RuntimeError(
            f"The guard process of the launch did not start within {_START_SECS:g} s, or ended "
            f"(exit code {self._process.wait()}). Its message is on stderr."
        )

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # Closes the pipe, which is the sign to clean up, and waits until that is done.
            self._process.communicate(timeout=_END_SECS)
        except subprocess.TimeoutExpired:  # It is halted.
            self._process.kill()
            self._process.communicate()
        if self._process.returncode:
            line = "The guard of this launch was halted or killed: the launcher cleans up instead."
            print(line, file=sys.stderr)
            _clean_up(self.folder)


def kill_all(folder: str | Path) -> None:
    """Kills every process that has this launch folder in its environment, even what moved away.

    A process group does not hold a grandchild that made a session of its own.
    """
    import psutil  # Here: the guard needs it at its end only.

    deadline = time.monotonic() + KILL_SECS
    found = True
    while found and time.monotonic() < deadline:  # Until none is left that could start another.
        found = False
        for process in psutil.process_iter():
            # Processes of other users, and those that end meanwhile, do not tell.
            with contextlib.suppress(psutil.Error):
                if process.environ().get(LAUNCH_FOLDER) == str(folder):
                    process.kill()
                    found = True


def _main() -> None:
    parent, network = sys.argv[1:]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    # Made here: nobody would remove it after a launcher that is killed before this process begins.
    folder = tempfile.mkdtemp(prefix="kerasdist-", dir=parent)
    answer = [folder, _isolate() if network == ISOLATED else "asked for"]
    with contextlib.suppress(BrokenPipeError):  # The launcher may have ended.
        os.write(sys.stdout.fileno(), f"{json.dumps(answer)}\n".encode())
    sys.stdin.read()  # Until the launcher ends.
    _clean_up(folder)


def _clean_up(folder: str | Path) -> None:
    kill_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _isolate() -> str:
    """Moves this process to a network with a loopback interface only; returns the outcome."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    try:
        _enter_new_namespace()
        _bring_loopback_up()
    except OSError as error:
        return f"no network namespace: {error}"
    return ISOLATED


def _enter_new_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:  # In a namespace of users, root would lose its rights over the files of others.
        _unshare(_CLONE_NEWNET)
        return
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    # The user stays who they are, so that the files of the tasks belong to them.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _unshare(flags: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _bring_loopback_up() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh22x", b"lo", 0)
        reply = fcntl.ioctl(handle, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("16xh", reply)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    _main()
