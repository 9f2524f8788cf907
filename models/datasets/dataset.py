"""One split of a dataset, ready to be read."""

import inspect
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf


class FilePart(NamedTuple):
    """Records of one TFRecord file that belong to a split.

    Attributes:
        path: The file.
        begin: The first of them, from 0.
        count: How many they are.
    """

    path: str
    begin: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The examples of a split, and what a training run must know about them.

    Args:
        records: What is stored of each example, in the stored order: in files; or a dataset of
            little, such as the names of files.
        read: Returns (image uint8 [height, width, channels], label int64 []) of a record, in the
            graph of a pipeline.
        num_examples: How many examples the split has.
        label_names: The names of the labels, from 0.
        channels: Channels of the images.
        split_names: All splits of the dataset.
        damage: Says which record of which file cannot be read, after reading has failed; "" if all
            can.
        boxes: Returns the bounding boxes of the objects in the image of a record, float32
            [1, number, 4]: top, left, bottom and right, as shares of height and width. None if
            none are stored.
    """

    records: Sequence[FilePart] | tf.data.Dataset
    read: Callable
    num_examples: int
    label_names: tuple[str, ...]
    channels: int
    split_names: tuple[str, ...]
    damage: Callable[[], str] = lambda: ""
    boxes: Callable | None = None

    @property
    def num_classes(self) -> int:
        """Labels are 0 to num_classes - 1."""
        return len(self.label_names)

    @property
    def examples(self) -> tf.data.Dataset:
        """What `read` returns, in the stored order."""
        return self.numbered_records().map(lambda _, record: self.read(record), tf.data.AUTOTUNE)

    @property
    def is_in_files(self) -> bool:
        """Whether a record is the content of an example, and not just its name."""
        return not isinstance(self.records, tf.data.Dataset)

    def boxes_for(self, preprocess: Callable, record: Any) -> dict[str, Any]:
        """Returns the argument `boxes` of a preprocessing, for a record; {} if it takes none."""
        if self.boxes is None or "boxes" not in inspect.signature(preprocess).parameters:
            return {}
        return {"boxes": self.boxes(record)}

    def numbered_records(self, *, num_readers: int = 1, seed: int | None = None) -> tf.data.Dataset:
        """Returns pairs of an example's number in the stored order, from 0, and its record.

        Args:
            num_readers: How many files are read beside each other, in turn.
            seed: The files come in another order in every epoch, which it decides. None keeps the
                order in which they are stored.
        """
        if isinstance(self.records, tf.data.Dataset):
            return self.records.enumerate()
        paths, begins, counts = zip(*self.records, strict=True)
        firsts = list(itertools.accumulate(counts, initial=0))[:-1]
        numbers = (tf.constant(each, tf.int64) for each in (begins, counts, firsts))
        # As bytes: the name of a file need not be text.
        files = tf.data.Dataset.from_tensor_slices((list(map(os.fsencode, paths)), *numbers))
        if seed is not None:
            files = files.shuffle(len(paths), seed=seed, reshuffle_each_iteration=True)
        is_parallel = num_readers > 1
        records = files.interleave(
            _records_of_file,
            cycle_length=num_readers,
            num_parallel_calls=num_readers if is_parallel else None,
            deterministic=True if is_parallel else None,
        )
        return records.apply(tf.data.experimental.assert_cardinality(self.num_examples))


@tf.autograph.experimental.do_not_convert
def _records_of_file(path: Any, begin: Any, count: Any, first: Any) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path).skip(begin).take(count).enumerate(first)
