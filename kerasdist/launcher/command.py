"""The command that a launch runs, checked before a cluster starts for nothing."""

import getopt
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"python[\d.]*")
# Those of Python itself, which stand before the script; a colon follows what takes a value.
_FLAGS_OF_PYTHON = "bBc:dEhiIm:OPqRsStuvVW:xX:?"
_NOT_A_SCRIPT = {"-c", "-m"}


def checked(program: object) -> list[str]:
    """Returns the command to run: with Python in front where only a script is given.

    Raises:
        TypeError: It is not a list of strings.
        ValueError: It is empty, or there is no such program or script.
    """
    if not isinstance(program, list | tuple) or not all(isinstance(x, str) for x in program):
        raise TypeError(
            "`program` must be a list of strings, such as ['python', 'train.py'], or a function. "
            f"Received: program={program!r}."
        )
    if not program:
        raise ValueError(
            "`program` must not be empty. Received: program=[]. In a terminal it stands after --: "
            "`python -m kerasdist launch --workers 2 -- python train.py`."
        )
    command = list(program)
    if command[0].endswith(".py") and not shutil.which(command[0]):
        command = [sys.executable, *command]
    if not shutil.which(command[0]):
        raise ValueError(
            f"`program` is not found, or not executable. Received: {command[0]!r}. "
            "Give its path, or start a script with `python`."
        )
    script = _script_of(command)
    if script and not Path(script).exists():
        raise ValueError(
            f"`program` names a script that does not exist. Received: {script!r}, looked for in "
            f"{Path.cwd()}."
        )
    return command


def _script_of(command: Sequence[str]) -> str:
    """Returns the script that Python is told to run; "" where it is something else."""
    if not _PYTHON.fullmatch(Path(command[0]).name):
        return ""
    try:
        flags, rest = getopt.getopt(command[1:], _FLAGS_OF_PYTHON)
    except getopt.GetoptError:  # Python knows better, and says so.
        return ""
    if not rest or rest[0] == "-" or _NOT_A_SCRIPT & {flag for flag, _ in flags}:
        return ""
    return rest[0]
