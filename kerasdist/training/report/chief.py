"""Lets only the chief of several workers write files and show progress."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.lifetime import carried_error, key_value_store
from kerasdist.private import keras_fit
from kerasdist.support import memory, users_line
from kerasdist.support.remote_path import is_remote
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.report import quiet_writer
from kerasdist.training.report.wrapper import Wrapper

# How long a worker waits for the chief to reach the same call, and to write.
BEGIN_SECS = 60.0
END_SECS = 3600.0
_WRITTEN = "written: "  # The path follows.


def callbacks_for(callbacks: list, strategy: tf.distribute.Strategy | None) -> list:
    """Returns those callbacks that this worker runs.

    Keras' own callbacks that write files would write the same on every worker, to the same path and
    at the same time. Only the chief runs them; the others only restore what BackupAndRestore has
    kept. A subclass may do more, so it runs on all workers, without what Keras' own would write.

    Args:
        callbacks: The callbacks that the user gave to `fit`.
        strategy: A strategy of ours.
    """
    if peers.is_chief(strategy):
        return callbacks
    of_others = [_of_other(each) for each in callbacks]
    return [each for each in of_others if each is not None]


def _of_other(callback: keras.callbacks.Callback) -> keras.callbacks.Callback | None:
    """Returns what a worker that is not the chief runs for a callback; None for nothing."""
    is_wrapped = isinstance(callback, Wrapper)
    inner = callback.innermost if is_wrapped else callback
    if isinstance(inner, keras.callbacks.ProgbarLogger):
        return None
    if not quiet_writer.is_writer(inner):
        return callback
    is_backup = isinstance(inner, keras.callbacks.BackupAndRestore)
    # A wrapper may keep it to the chief, but all workers must restore.
    if quiet_writer.is_subclassed(inner) and not (is_backup and is_wrapped):
        quiet_writer.quieten(inner)
        return callback
    return _RestoreAlone(inner) if is_backup else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A call that writes, as all workers name it.

    Attributes:
        name: By the name of the file.
        in_line: By the line that calls.
        in_order: By its number among all.
    """

    name: str
    in_line: str
    in_order: str


def write(original: Any, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
    """Replaces `save`, `save_weights` and `export`: the chief writes, and the others wait for it.

    So the file is there on every worker when they return, or all raise what the chief raises. A
    worker that names a path of its own, or works in a folder of its own, then writes there, too:
    its program may look there next.
    The chief waits for nobody: it may write alone, as its callbacks do.
    """
    strategy = getattr(model, "distribute_strategy", None)
    path = args[0] if args else kwargs.get("filepath")
    if strategy is None or peers.count(strategy) == 1 or not isinstance(path, (str, os.PathLike)):
        return original(model, *args, **kwargs)
    path = os.fsdecode(path)
    is_in_fit = running_call.training_of(model) is not None
    # Inside `fit`, a checkpoint that is not to be written has a path without a folder.
    may_write = bool(os.path.dirname(os.path.normpath(path))) or not is_in_fit
    call = _next_call(original.__name__, path, is_in_fit=is_in_fit)
    if not is_remote(path):  # The workers' working folders may differ.
        path = os.path.abspath(path)

    def write_here() -> None:
        with keras_fit.compile_config_kept(model):
            original(model, *args, **kwargs)

    if peers.is_chief(strategy):
        _write_and_tell(write_here, path, call)
        return None
    try:
        path_of_chief = _path_of_chief(strategy, call)
    except tf.errors.UnavailableError:  # Its program has ended: it writes nothing any more.
        path_of_chief = ""
    if may_write and path_of_chief not in (path, None):
        write_here()
    return None


def _next_call(method: str, path: str, *, is_in_fit: bool) -> _Call:
    """Counts a call that writes, and returns it."""
    name, line = os.path.basename(os.path.normpath(path)), users_line.current()
    # Inside `fit` callbacks write, and the chief has more of them.
    where = "in `fit`" if is_in_fit else "outside `fit`"
    num_written = memory.PROCESS.num_written
    for key in ((name, where), (line, where), where):
        num_written[key] += 1
    return _Call(
        f"`{method}` for {name!r} (call {num_written[name, where]}, {where})",
        f"call {num_written[line, where]} that writes in {line}, {where}, ends",
        f"call {num_written[where]} that writes {where} ends",
    )


def _write_and_tell(write_here: Callable[[], None], path: str, call: _Call) -> None:
    """Writes as the chief, and posts for the others where, or what has failed."""
    key_value_store.post(f"{call.name} begins")
    try:
        write_here()
    except BaseException as error:
        told = f"the chief failed in {call.name}: {type(error).__name__}: {error}"
        key_value_store.replace(f"{call.name} ends", carried_error.to_text(error, told))
        raise
    key_value_store.replace(f"{call.name} ends", _WRITTEN + path)
    key_value_store.post(call.in_line)
    key_value_store.post(call.in_order)


def _path_of_chief(strategy: tf.distribute.Strategy, call: _Call) -> str | None:
    """Waits until the chief has written, and returns where; None if it does not get there.

    A program may name other files on other workers. If the chief has written one in the same line,
    it has done its part. If that was in another line, it may only be late: it may have written
    files alone before.

    Returns:
        The path; "" for one of another name, of which the chief's program knows alone.
    """
    begun = f"{call.name} begins"
    found = key_value_store.first_posted(begun, call.in_line, timeout_secs=BEGIN_SECS)
    if found != begun and key_value_store.is_posted(begun, timeout_secs=0.0):
        found = begun
    if found == call.in_line:
        return ""
    end = found and key_value_store.wait_for_text(f"{call.name} ends", timeout_secs=END_SECS)
    if not end:
        secs, what = (END_SECS, "ended") if found else (BEGIN_SECS, "called")
        warn(
            f"{peers.cluster_of(strategy).task} waited {secs:g} s for the chief, the only task "
            f"that writes files. The chief has not {what} {call.name}. Call it on all workers, "
            "with the same file name or in the same line, or on the chief alone."
        )
        has_other = not found and key_value_store.is_posted(call.in_order, timeout_secs=0.0)
        return "" if has_other else None
    if not end.startswith(_WRITTEN):
        raise carried_error.from_text(end)
    return end.removeprefix(_WRITTEN)


class _RestoreAlone(keras.callbacks.Callback):
    """Restores like the `BackupAndRestore` it is given, and leaves backups to the chief."""

    def __init__(self, backup: keras.callbacks.BackupAndRestore):
        super().__init__()
        self._backup = backup

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._backup.set_model(model)

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._backup.on_train_begin(logs)
