"""What event files hold."""

import tensorflow as tf
from tensorflow.core.util import event_pb2


def scalars(folder) -> list[tuple[str, int]]:
    """Returns the names and steps of the scalars in the event files of a folder."""
    return [
        (value.tag, event.step)
        for path in sorted(folder.rglob("events.out.*"))
        for record in tf.data.TFRecordDataset(str(path))
        # Protocol buffers make their classes at run time.
        for event in [event_pb2.Event.FromString(record.numpy())]  # ty: ignore[missing-attribute]
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    ]
