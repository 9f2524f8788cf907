"""Run the user's program for the doctor: first the probe, then the program itself.

    python -m kerasdist.doctor.entry '{"folder": ...}' train.py --epochs 3

The settings are those of `doctor.settings`. As with Python, a module (`-m`) and code (`-c`) run,
too.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import keras

from kerasdist.doctor.probe import Probe
from kerasdist.doctor.settings import Settings

_SEED = 1


def main(arguments: list[str]) -> int:
    """Runs a program until its first training steps are done; returns the exit code."""
    settings, *program = arguments
    Probe(Settings(**json.loads(settings))).lay()
    keras.utils.set_random_seed(_SEED)  # A seed of the program's own comes later, and wins.
    try:
        _run(program)
    except Exception as error:  # The program may raise anything.  # noqa: BLE001
        # Not raised again, so that the traceback begins with the program.
        frames = _frames_of_program(error)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 1
    return 0


def _run(program: list[str]) -> None:
    first, *arguments = program
    if first == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = program
        sys.path[0] = str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


def _frames_of_program(error: BaseException):
    frames: Any = error.__traceback__
    while frames.tb_next and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(filename: str) -> bool:
    return filename in (__file__, runpy.run_path.__code__.co_filename)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
