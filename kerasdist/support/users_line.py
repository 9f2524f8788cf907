"""The line of the user's program that a warning points at.

A warning about a model may arise far below the line that calls `fit`: in a trace, in a callback, in
the thread of a replica. Its reader knows none of those files.

    warn("The data holds no batch.")     # train.py:12: UserWarning: The data holds no batch.
"""

import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any

_SENDER = "A warning of kerasdist."
_BELOW_USERS = {"kerasdist", "keras", "tensorflow"} | sys.stdlib_module_names


def warn(text: str) -> None:
    """Gives a UserWarning at the innermost line of the program that called Keras or kerasdist.

    Filters see the module of that line, and Python shows the same text at the same line once.
    """
    frame = _users_frame()
    warning = UserWarning(text)
    warning.add_note(_SENDER)
    warnings.warn_explicit(
        warning,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def current() -> str:
    """Returns the innermost line of the program that called Keras or kerasdist: "train.py:12"."""
    frame = _users_frame()
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def is_of_kerasdist(warning: Warning | str) -> bool:
    """Whether `warn` has given a warning, whose line does not tell."""
    return _SENDER in getattr(warning, "__notes__", ())


def _users_frame() -> FrameType:
    """Returns the user's frame of this thread, or else of one that waits for it.

    A command such as `python -m kerasdist plan` has none: what gives the warning stands for it.
    """
    frames = sys._current_frames()
    own: Any = frames.pop(threading.get_ident())
    found = map(_caller_of_kerasdist, (own, *frames.values()))
    return next(filter(None, found), own.f_back.f_back)


def _caller_of_kerasdist(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame of the user's if kerasdist was called there."""
    packages = set()
    while frame and not _is_users(frame):
        packages.add(_package_of(frame))
        frame = frame.f_back
    return frame if "kerasdist" in packages else None


def _is_users(frame: FrameType) -> bool:
    # AutoGraph moves what it rewrites to a temporary file, which its author has never seen.
    file = frame.f_code.co_filename
    return _package_of(frame) not in _BELOW_USERS and file == frame.f_globals.get("__file__", file)


def _package_of(frame: FrameType) -> str:
    names = frame.f_globals
    return str(names.get("__package__") or names.get("__name__", "")).partition(".")[0]
