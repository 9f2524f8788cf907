"""What event files hold."""

import numpy as np
import tensorflow as tf
from tensorflow.core.util import event_pb2


def scalars(folder) -> list[tuple[str, int]]:
    """Returns the names and steps of the scalars in the event files of a folder."""
    return [(tag, step) for tag, step, _ in _values(folder, "scalars")]


def numbers(folder) -> dict[str, dict[int, float]]:
    """Returns the scalars in the event files of a folder: by name, the value of each step."""
    found: dict = {}
    for tag, step, value in _values(folder, "scalars"):
        assert step not in found.setdefault(tag, {}), f"{tag} is there twice for step {step}"
        found[tag][step] = value.item()
    return found


def histograms(folder) -> dict[str, dict[int, np.ndarray]]:
    """Returns the histograms: by name, for each step the rows [left end, right end, count]."""
    found: dict = {}
    for tag, step, value in _values(folder, "histograms"):
        found.setdefault(tag, {})[step] = value
    return found


def texts(folder) -> dict[str, str]:
    """Returns the texts in the event files of a folder, by name."""
    return {tag: value[0].decode() for tag, _, value in _values(folder, "text")}


def images(folder) -> dict[str, list[bytes]]:
    """Returns the pictures in the event files of a folder, by name, as PNG."""
    return {tag: list(value[2:]) for tag, _, value in _values(folder, "images")}


def _values(folder, plugin):
    return [
        (value.tag, event.step, tf.make_ndarray(value.tensor))
        for event in events(folder)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


def events(folder) -> list:
    """Returns all events in the event files of a folder."""
    return [
        # Protocol buffers make their classes at run time.
        event_pb2.Event.FromString(record.numpy())  # ty: ignore[missing-attribute]
        for path in sorted(folder.rglob("events.out.*"))
        for record in tf.data.TFRecordDataset(str(path))
    ]
