"""Keeps Keras' callbacks that write files from writing, on workers that write none.

A subclass may do more in its hooks than write, such as add to the logs, evaluate, or set a learning
rate, and all workers must do that. So it runs on every worker, and between it and Keras' own class
comes a quiet one, in which its `super().on_epoch_end(epoch, logs)` ends.

    quieten(BestOfScore("best.keras", monitor="score"))
"""

import os
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private.keras_fit import QuietCheckpoint
from kerasdist.training.report.wrapper import HOOKS


def is_writer(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback is one of Keras' own that write files, or of a subclass."""
    return isinstance(callback, tuple(_QUIET))


def is_subclassed(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback may do more than that one of Keras' own."""
    return type(callback) not in _QUIET


def quieten(callback: keras.callbacks.Callback) -> None:
    """Keeps Keras' part of a callback of a subclass from writing, from now on."""
    callback.__class__ = _quiet(type(callback))


def _quiet(kind: type) -> type:
    if issubclass(kind, tuple(_QUIET.values())):
        return kind
    # Python asks the quiet class after all that the subclass is made of, and before Keras' own.
    bases = [quiet for original, quiet in _QUIET.items() if issubclass(kind, original)]
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (_Unannounced, kind, *bases), names)


class _Unannounced(keras.callbacks.Callback):
    """Hides a subclass from a class of the user that counts or checks its subclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Does nothing, in place of what the user's class does."""


def _silent(kind: type, *, except_for: tuple[str, ...] = ()) -> None:
    """Gives a class hooks that do nothing, which are not even called in a step."""
    for hook in HOOKS:
        if hook not in except_for:
            setattr(kind, hook, getattr(keras.callbacks.Callback, hook))


class _QuietBackup(keras.callbacks.BackupAndRestore):
    """Restores, and makes no backups."""


_silent(_QuietBackup, except_for=("on_train_begin",))


class _QuietCSVLogger(keras.callbacks.CSVLogger):
    """Has the `csv_file`, the `writer` and the `keys` of Keras' own, but writes nowhere."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        path, self.filename = self.filename, os.devnull
        try:
            super().on_train_begin(logs)
        finally:
            self.filename = path


class _Summary:
    """`tf.summary` with writers that do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tf.summary, name)

    def create_file_writer(self, *args: Any, **kwargs: Any) -> tf.summary.SummaryWriter:
        return tf.summary.create_noop_writer()


class _QuietTensorBoard(keras.callbacks.TensorBoard):
    """Has writers that do nothing, for a subclass that uses those of Keras."""

    summary: Any = _Summary()  # From which Keras' own takes its writers.

    def set_model(self, model: keras.Model) -> None:
        kept = self.write_graph, self.embeddings_freq
        self.write_graph = self.embeddings_freq = False
        try:
            super().set_model(model)
        finally:
            self.write_graph, self.embeddings_freq = kept


_silent(_QuietTensorBoard)

_QUIET: dict[type, type] = {
    keras.callbacks.ModelCheckpoint: QuietCheckpoint,
    keras.callbacks.BackupAndRestore: _QuietBackup,
    keras.callbacks.CSVLogger: _QuietCSVLogger,
    keras.callbacks.TensorBoard: _QuietTensorBoard,
}
