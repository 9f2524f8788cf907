"""Begins a task: joins the cluster's network, dies with the launcher, becomes the program.

A script, started as `python -I -S task_entry.py <launcher pid> <guard pid or 0> <program ...>`.
Doing this between fork and exec in the launcher would run Python code in a copy of a process with
threads, which can hang.
"""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys

_MOST_FILES = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h has it.


def _main() -> None:
    launcher, guard, *program = sys.argv[1:]
    if guard != "0":
        _join_network_of(guard)
    _die_with(int(launcher))
    # Python ignores the first two, a shell the others in what it starts in the background; and what
    # is ignored stays so in the program.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_DFL)
    _allow_connections()
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(_complain(program[0], error))


def _allow_connections() -> None:
    """Raises the limit of open files: each connection of a peer, or of a stranger, is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _join_network_of(pid: str) -> None:
    # Both are opened first: inside the user namespace the other may no longer be in reach.
    opened = [
        os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        for kind in ("user", "net")
        if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in opened:
        if libc.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
        os.close(descriptor)


def _die_with(launcher: int) -> None:
    # After joining the namespace: a change of credentials would undo it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        sys.exit("error: the launcher ended before this task began.")


def _complain(program: str, error: OSError) -> int:
    print(f"error: Cannot run {program!r}: {_reason(program, error)}.", file=sys.stderr)
    return 127 if isinstance(error, FileNotFoundError) else 126  # Shells do the same.


def _reason(program: str, error: OSError) -> str:
    first_line = ""
    with contextlib.suppress(OSError), open(program, "rb") as file:
        first_line = file.readline(200).decode(errors="replace").strip()
    if error.errno == errno.ENOENT and first_line.startswith("#!"):
        return f"there is no {first_line[2:].strip()!r}, which its first line names"
    if error.errno == errno.ENOEXEC:
        return f'it has no first line such as "#!/usr/bin/env python3". Try: python {program}'
    return str(error.strerror)


if __name__ == "__main__":
    _main()
