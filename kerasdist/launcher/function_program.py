"""Runs a Python function as the program of a cluster: sent to fresh processes, its values back.

A function that cannot be imported, as in a notebook, is sent by value, in files of a private
folder. This file is the script that calls it, as well as the module that packs it.
"""

import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_PROGRAM = "program.pickle"


def pack(function: Callable[[], Any], folder: Path) -> list[str]:
    """Writes the function into the folder and returns the command that calls it.

    Raises:
        TypeError: The function needs arguments, or refers to something that cannot be sent to
            another process.
    """
    import cloudpickle  # Here: only functions need it.

    _check_arguments(function)
    # The script of a process that `multiprocessing` has started, which no other process can import.
    main = sys.modules.get("__mp_main__")
    if main is not None:
        cloudpickle.register_pickle_by_value(main)
    try:
        carried = cloudpickle.dumps(function)
    except Exception as error:  # Whatever an object's own pickling raises.
        raise TypeError(
            f"`program` cannot be sent to other processes. Received: program={function!r} "
            f"({error}). Create models, datasets, locks and open files inside the function."
        ) from error
    finally:
        if main is not None:
            cloudpickle.unregister_pickle_by_value(main)
    # Modules are imported there by name, from where they are found here.
    (folder / _PROGRAM).write_bytes(pickle.dumps({"path": sys.path, "function": carried}))
    return [sys.executable, "-P", __file__, str(folder)]


def _check_arguments(function: Callable):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some of those that are written in C have none.
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(
            f"`program` is called without arguments. Received: program={function!r}, which needs "
            f"some ({error}). Give them with `functools.partial({_name_of(function)}, ...)`."
        ) from None


def _name_of(function: Callable) -> str:
    return getattr(function, "__name__", "function")


def values_of(tasks: Sequence, folder: Path) -> list[Any]:
    """Returns what the function returned in each task; None for one that did not return."""
    return [_read_value(folder / _value_name(task.job, task.index)) for task in tasks]


def _read_value(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _value_name(job: str, index: int) -> str:
    return f"{job}-{index}.pickle"


def _main() -> None:
    sys.excepthook = _print_error
    folder = Path(sys.argv[1])
    # Read first: the function may change its environment.
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    program = pickle.loads((folder / _PROGRAM).read_bytes())
    sys.path[:] = program["path"]
    function = pickle.loads(program["function"])
    value = function()
    path = folder / _value_name(task["type"], task["index"])
    partial = path.with_suffix(".partial")
    partial.write_bytes(_dump(value))
    partial.rename(path)  # A task that is killed while writing leaves no half value.


def _print_error(
    error_class: type[BaseException], error: BaseException, traceback: TracebackType | None
):
    """Prints an error as usual, without the lines of this file, which mean nothing to the user."""
    while traceback and traceback.tb_next and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.__excepthook__(error_class, error.with_traceback(traceback), traceback)


def _dump(value: Any) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # Whatever an object's own pickling raises.
        raise TypeError(
            f"The value that the function returned cannot be sent to the launcher: {error}. "
            "Return numbers, arrays or containers of them."
        ) from error


if __name__ == "__main__":
    _main()
