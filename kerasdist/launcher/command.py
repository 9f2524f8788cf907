"""Checks the command that a launch runs, before a cluster is started in vain; and splits it."""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"python[\d.]*(t?d?|-dbg)")
# An option of Python itself: flags in one word, the first that takes a value, and the value.
_WITH_VALUE = re.compile(r"-([^-cmWX]*)([cmWX])(.*)", re.DOTALL)
_PRINTS = re.compile("-[Vh?]|--version|--help")  # Options after which Python ends.
_LONG_WITH_VALUE = "--check-hash-based-pycs"


def checked(program: object) -> list[str]:
    """Returns the command to run: with Python in front if only a script is given.

    Raises:
        TypeError: It is not a list of strings.
        ValueError: It is empty or Python alone, begins with an option, reads its script from
            standard input, or there is no such program or script.
    """
    given = command = _as_list(program)
    check_is_no_notebook("program", command)
    if command[0].endswith(".py") and not shutil.which(command[0]):
        command = [sys.executable, *command]
    if command[0].startswith("-"):
        raise ValueError(
            f"`program` begins with an option. Received: {command[0]!r}. Options go before --, and "
            "the program after it: `python -m kerasdist launch --workers 2 -- python train.py`."
        )
    if not shutil.which(command[0]):
        raise ValueError(
            f"`program` is not found, or not executable. Received: {command[0]!r}. "
            "Give its path, or start a script with `python`."
        )
    _check_script(command, given)
    return command


def _as_list(program: object) -> list[str]:
    if not isinstance(program, list | tuple) or not all(isinstance(x, str) for x in program):
        raise TypeError(
            "`program` must be a list of strings, such as ['python', 'train.py'], or a function. "
            f"Received: program={program!r}."
        )
    if not program:
        raise ValueError(
            "`program` must not be empty. Received: program=[]. In a terminal, it follows --: "
            "`python -m kerasdist launch --workers 2 -- python train.py`."
        )
    return list(program)


def _check_script(command: list[str], given: list[str]) -> None:
    """Checks that Python, if a command runs it, gets a script that is there."""
    python, what = split_python(command)
    if python and not what and not any(_PRINTS.match(option) for option in python[1:]):
        raise ValueError(
            f"`program` is Python without a script. Received: program={given!r}. Add a "
            "script, or -m and a module: `python -m kerasdist launch -- python train.py`."
        )
    if what[:1] in (["-"], ["/dev/stdin"]):
        raise ValueError(
            "`program` reads its script from standard input, which is not passed on to the tasks: "
            f"theirs is empty. Received: program={given!r}. Write the script to a file."
        )
    # A script that is a program of its own has been found.
    script = "" if command[0].endswith(".py") else next(iter(what), "")
    if script and not script.startswith("-") and not Path(script).exists():
        raise ValueError(
            f"`program` names a script that does not exist. Received: {script!r}, looked for in "
            f"{Path.cwd()}."
        )


def check_is_no_notebook(name: str, command: Sequence[str]) -> None:
    """Raises a ValueError if a command runs a notebook, which Python cannot read."""
    _, what = split_python(command)
    script = next(iter(what or command), "")
    if script.endswith(".ipynb"):
        made = shlex.quote(f"{script.removesuffix('.ipynb')}.py")
        raise ValueError(
            f"`{name}` is a notebook, which Python cannot run. Received: {script!r}. Make a script "
            f"of it: `jupyter nbconvert --to script {shlex.quote(script)}`, and run {made}."
        )


def split_python(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns Python with its options, and what it runs with the arguments of that.

    What it runs begins with a script, with "-m" or "-c" in a word of their own, or with "-". A
    script alone is for this Python. Both lists are empty for a command of another program.

    Args:
        command: A program and its arguments.

    Example:
        split_python(["python", "-um", "train", "-x"])  # ["python", "-u"], ["-m", "train", "-x"]
    """
    python, *rest = command
    if python.endswith(".py"):
        return [sys.executable], [python, *rest]
    if not _PYTHON.fullmatch(Path(python).name):
        return [], []
    options = [python]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option, *rest = rest
        if option == "--":
            break
        found = _WITH_VALUE.fullmatch(option)
        if found and found[2] in "cm":
            flags, kind, value = found.groups()
            options += [f"-{flags}"] if flags else []
            return options, [f"-{kind}", *([value] if value else []), *rest]
        num_taken = option == _LONG_WITH_VALUE or bool(found and not found[3])
        options += [option, *rest[:num_taken]]
        rest = rest[num_taken:]
    return options, rest
