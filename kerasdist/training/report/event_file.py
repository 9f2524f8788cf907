"""Writes event files for TensorBoard, without the package `tensorboard`.

A write is one call, however many tags it has, and reaches the disk at once. If the disk refuses it,
training goes on without.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.support import memory
from kerasdist.support.users_line import warn
from kerasdist.training.hooks.tensor_statistics import Statistics

_Value = tf.compat.v1.Summary.Value
_TensorProto = type(tf.make_tensor_proto(0.0))
_TensorShapeProto = type(tf.make_tensor_proto(0.0).tensor_shape)
# Tells our files from those of other writers in the same folder.
_SUFFIX = ".kerasdist.v2"


class EventFile:
    """A file of events in a folder; it is created with the first event.

    Args:
        folder: Where TensorBoard looks for a run.
        is_strict: Whether an error of the disk is raised. Otherwise there is one warning, and
            nothing more is written.

    Attributes:
        has_failed: Whether the disk has refused something.
        has_content: Whether it has taken something.
    """

    def __init__(self, folder: str, *, is_strict: bool = False):
        self._folder, self._is_strict = folder, is_strict
        self._writer: Any = None
        self._path = ""  # The file that the writer has begun, if it is on this machine.
        self.has_failed = self.has_content = False

    def write(
        self,
        step: int,
        *,
        scalars: Mapping[str, float] | None = None,
        histograms: Mapping[str, Statistics] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Writes numbers, histograms and texts of a step, by their tags."""
        values = [
            *(_scalar(tag, value) for tag, value in (scalars or {}).items()),
            *(_histogram(tag, value) for tag, value in (histograms or {}).items()),
            *(_text(tag, value) for tag, value in (texts or {}).items()),
        ]
        if values:
            last_steps = memory.PROCESS.last_event_steps
            if self._folder in last_steps:
                last_steps[self._folder] = max(step, last_steps[self._folder])
            event = tf.compat.v1.Summary(value=values).SerializeToString()
            write = functools.partial(tf.summary.experimental.write_raw_pb, event, step)
            self._try(lambda: self._write(write))

    def forget_after(self, step: int, *, since: float = 0.0) -> None:
        """Removes the events after a step from earlier files of ours: they are written again.

        TensorBoard would show both. A process that has written no later ones itself looks for them
        only once: it may call `fit` a thousand times.

        Args:
            step: The last one that stays.
            since: Unix time in seconds. Events from before stay, too: they are of an earlier `fit`,
                whose optimizer counted for itself.
        """
        if memory.PROCESS.last_event_steps.get(self._folder, step + 1) <= step:
            return

        def forget() -> None:
            for path in tf.io.gfile.glob(os.path.join(self._folder, f"*tfevents*{_SUFFIX}")):
                _forget_after(step, since, path)
            memory.PROCESS.last_event_steps[self._folder] = step

        self._try(forget)

    def write_graph(self, graph: tf.Graph) -> None:
        """Writes the graph of a compiled function."""
        self._try(lambda: self._write(lambda: tf.summary.graph(graph)))

    def close(self) -> None:
        """Closes the file; a later write begins another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, write: Callable[[], object]) -> None:
        if self._writer is not None and self._is_deleted():
            self.close()
        is_new = self._writer is None
        before = self._names() if is_new else set()
        if is_new:
            self._writer = tf.summary.create_file_writer(self._folder, filename_suffix=_SUFFIX)
        with self._writer.as_default(), tf.summary.record_if(True):
            write()
        self._writer.flush()
        if is_new:
            begun = self._names() - before
            self._path = os.path.join(self._folder, begun.pop()) if begun else ""
        self.has_content = True

    def _is_deleted(self) -> bool:
        """Whether somebody has deleted the file, which can still be written, in vain."""
        return bool(self._path) and not os.path.exists(self._path)

    def _names(self) -> set[str]:
        """Returns the names of the event files that are there; none of another machine's."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        return {name for name in names if name.endswith(_SUFFIX)}

    def _try(self, act: Callable[[], object]) -> None:
        if self.has_failed:
            return
        try:
            act()
        except (OSError, tf.errors.OpError) as error:
            if self._is_strict:
                raise
            self.has_failed = True
            reason = getattr(error, "message", error)
            warn(
                f"Summaries cannot be written to {self._folder!r}: {reason}. Training goes on "
                "without them."
            )


def _forget_after(step: int, since: float, path: str) -> None:
    kept, num_all = [], 0
    with contextlib.suppress(tf.errors.DataLossError):  # The last one of a run that was killed.
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            num_all += 1
            if event.step <= step or event.wall_time < since:
                kept.append(record)
    if len(kept) == num_all:
        return
    folder, name = os.path.split(path)
    # No reader looks for such a name.
    rewritten = os.path.join(folder, name.replace("tfevents", "rewritten"))
    try:
        writer = tf.io.TFRecordWriter(rewritten)
        with contextlib.closing(writer):
            for record in kept:
                writer.write(record)
        tf.io.gfile.rename(rewritten, path, overwrite=True)
    except (OSError, tf.errors.OpError):  # Such as a full disk, which is told by the caller.
        with contextlib.suppress(OSError, tf.errors.OpError):
            tf.io.gfile.remove(rewritten)
        raise


def _scalar(tag: str, value: float) -> _Value:
    tensor = _TensorProto(dtype=tf.float32.as_datatype_enum, float_val=[value])
    return _Value(tag=tag, tensor=tensor, metadata=_SCALAR)


def _histogram(tag: str, found: Statistics) -> _Value:
    # A row for each bucket: its left end, its right end, how many are in it.
    rows = np.empty((len(found.counts), 3))
    if found.counts.any():
        ends = found.low + (found.high - found.low) / len(rows) * np.arange(len(rows) + 1)
        rows[:, 0], rows[:, 1], rows[:, 2] = ends[:-1], ends[1:], found.counts
    else:
        rows = rows[:0]
    return _Value(tag=tag, tensor=_tensor(rows), metadata=_HISTOGRAM)


def _text(tag: str, text: str) -> _Value:
    return _Value(tag=tag, tensor=tf.make_tensor_proto([text]), metadata=_TEXT)


def _tensor(rows: np.ndarray) -> Any:
    # A tenth of the time of `tf.make_tensor_proto`, where there are hundreds of histograms.
    shape = _TensorShapeProto(dim=[_TensorShapeProto.Dim(size=size) for size in rows.shape])
    return _TensorProto(
        dtype=tf.float64.as_datatype_enum, tensor_shape=shape, tensor_content=rows.tobytes()
    )


def _metadata(plugin: str, data_class: str) -> tf.compat.v1.SummaryMetadata:
    return tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin),
        data_class=data_class,
    )


_SCALAR = _metadata("scalars", "DATA_CLASS_SCALAR")
_HISTOGRAM = _metadata("histograms", "DATA_CLASS_TENSOR")
_TEXT = _metadata("text", "DATA_CLASS_TENSOR")
