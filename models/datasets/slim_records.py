"""TFRecords as slim's scripts wrote them, read as they are.

data/cifar10_train.tfrecord                    cifar10, mnist, and your own with such names
data/flowers_train_00000-of-00005.tfrecord     flowers, and your own with such names
data/train-00000-of-01024                      imagenet
data/train.record-00000-of-00100               visualwakewords
data/labels.txt                                "0:daisy", a line for each class

Each record is a tf.train.Example with image/encoded and image/class/label, and may have bounding
boxes of objects, image/object/bbox/ymin and so on. As slim does, images are read in color, also
gray ones, unless the dataset is gray by its definition.
"""

import functools
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from ..files import labels
from ..usage_error import UnreadableDataError, UsageError
from . import splits
from .damage import READ_ERRORS, damage_of_file, damage_of_record, reason_of
from .dataset import Dataset, FilePart
from .encoded_image import decode

# The datasets whose files are named otherwise, and the classes of those without a labels.txt.
_FILES = {
    "imagenet": r"(?P<split>train|validation)-\d+-of-(?P<count>\d+)",
    "visualwakewords": r"(?P<split>\w+)\.record-\d+-of-(?P<count>\d+)",
}
SPLIT = "[a-zA-Z0-9]+"  # Without an underscore, behind which the number of the file is.
_NUM_CLASSES = {"cifar10": 10, "flowers": 5, "imagenet": 1001, "mnist": 10, "visualwakewords": 2}
_GRAY = {"digits", "emnist", "fashion_mnist", "kmnist", "mnist"}
_LENGTH = struct.Struct("<Q")  # Of a record: it comes after this and 4 bytes, and before 4 more.
_AROUND = 4
_SIDES = [f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")]


def has_own_names(name: str) -> bool:
    """Returns whether slim names the files of a dataset in another way than `<name>_<split>`."""
    return name in _FILES


def files_of(name: str, data_dir: str) -> dict[str, list[Path]]:
    """Returns the files in slim's format of each split of the dataset `name`; {} without any.

    Raises:
        UsageError: Shards are missing.
        UnreadableDataError: One is no file.
    """
    pattern = re.compile(
        _FILES.get(
            name,
            rf"{re.escape(name)}_(?P<split>{SPLIT})(_\d+-of-(?P<count>\d+))?\.tfrecord(-.*)?",
        )
    )
    found: dict[str, list[Path]] = {}
    for path in sorted(Path(data_dir).iterdir()):
        match = pattern.fullmatch(path.name)
        if match:
            if not path.is_file():  # One would wait for what is written to a pipe.
                raise UnreadableDataError(f"--dataset_name {name!r}: {path} is not a file.")
            found.setdefault(match["split"], []).append(path)
    for split, paths in found.items():
        _check_shards(name, split, paths, pattern)
    return found


def _check_shards(name: str, split: str, paths: list[Path], pattern: re.Pattern) -> None:
    count = pattern.fullmatch(paths[0].name)["count"]
    if count and len(paths) != int(count):
        raise UsageError(
            f"--dataset_name {name!r}: the split {split!r} has {len(paths)} of {int(count)} files "
            f"such as {paths[0]}."
        )


def load(name: str, files: dict[str, list[Path]], *, split: str | None, data_dir: str) -> Dataset:
    """Returns a split of a dataset in slim's format.

    Args:
        name: The name of the dataset.
        files: The files of each split.
        split: Such as "train", or a slice of one. None is the first.
        data_dir: Where labels.txt is.

    Raises:
        UsageError: There is no such split, or the classes are unknown.
        UnreadableDataError: A file is incomplete, or does not begin with a record in slim's format.
    """
    channels = 1 if name in _GRAY else 3
    read = functools.partial(_read, channels=channels)
    try:
        counts = {each: {path: _count(path) for path in paths} for each, paths in files.items()}
        sizes = {each: sum(of_files.values()) for each, of_files in counts.items()}
        parts = splits.parts(name, split or next(iter(sizes)), sizes)
        _check_first_record(files[parts[0].split][0])
    except UnreadableDataError as error:
        raise UnreadableDataError(f"--dataset_name {name!r}: {error}") from error
    return Dataset(
        records=[each for part in parts for each in _parts_of_files(part, counts)],
        read=read,
        num_examples=sum(part.end - part.begin for part in parts),
        label_names=_label_names(name, Path(data_dir)),
        channels=channels,
        split_names=tuple(sizes),
        damage=lambda: next(filter(None, _damages(files, parts, read)), ""),
        boxes=_boxes,
    )


def _parts_of_files(part: splits.Part, counts: dict[str, dict[Path, int]]) -> Iterator[FilePart]:
    """Yields the records of a part of a split, file by file."""
    first = 0
    for path, count in counts[part.split].items():
        begin, end = max(part.begin - first, 0), min(part.end - first, count)
        if begin < end:
            yield FilePart(str(path), begin, end - begin)
        first += count


def _damages(
    files: dict[str, list[Path]], parts: list[splits.Part], read: Callable
) -> Iterator[str]:
    paths = [str(path) for part in parts for path in files[part.split]]
    # Boxes come last, since most trainings do not read them.
    for look_at in (read, _boxes):
        yield from (damage_of_file(path, look_at)[1] for path in paths)


def _label_names(name: str, data_dir: Path) -> tuple[str, ...]:
    path = data_dir / labels.FILE
    num_classes = labels.count(path) or _NUM_CLASSES.get(name)
    if not num_classes:
        raise UsageError(
            f"--dataset_name {name!r} needs {path}, which names the classes: a line such as "
            "0:daisy for each."
        )
    return tuple(labels.read(path, num_classes=num_classes))


def _count(path: Path) -> int:
    """Returns the number of records in a file, without reading them.

    Raises:
        UnreadableDataError: Their lengths are not those of the file, or it may not be read.
    """
    try:
        end = path.stat().st_size
        with path.open("rb") as file:
            number = begin = 0
            while begin < end:
                head = file.read(_LENGTH.size).ljust(_LENGTH.size, b"\xff")
                begin += _LENGTH.size + _AROUND + _LENGTH.unpack(head)[0] + _AROUND
                if begin > end:
                    raise UnreadableDataError(_damage_of_lengths(path, number))
                file.seek(begin)
                number += 1
    except OSError as error:
        raise UnreadableDataError(f"{path} cannot be read: {error.strerror}") from error
    return number


def _damage_of_lengths(path: Path, number: int) -> str:
    """Returns which record is the first that cannot be read, if all up to `number` are too long.

    A length that is damaged may lead to what looks like several further records. TensorFlow reads
    all of them, and compares the sums of their lengths.
    """
    number_read, damage = damage_of_file(str(path), lambda record: record)
    if damage and number_read < number:
        return damage
    reason = "the file ends before it does. It is incomplete, or the length is damaged."
    return damage_of_record(number, path, reason)


def _check_first_record(path: Path) -> None:
    try:
        _parse(next(iter(tf.data.TFRecordDataset(os.fsencode(path)).take(1))))
    except tf.errors.DataLossError as error:
        raise UnreadableDataError(damage_of_record(0, path, reason_of(error))) from error
    except (StopIteration, *READ_ERRORS) as error:
        reason = "it is empty" if isinstance(error, StopIteration) else reason_of(error)
        raise UnreadableDataError(
            f"{path} does not begin with a record in slim's format, with image/encoded and "
            f"image/class/label: {reason}"
        ) from error


def _parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
    return tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )


def _read(record: tf.Tensor, *, channels: int):
    example = _parse(record)
    return decode(example["image/encoded"], channels=channels), example["image/class/label"]


def _boxes(record: tf.Tensor) -> tf.Tensor:
    feature = tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)
    sides = tf.io.parse_single_example(record, dict.fromkeys(_SIDES, feature))
    boxes = tf.stack([sides[name] for name in _SIDES], axis=-1)[None]
    are_shares = tf.reduce_all((boxes >= 0) & (boxes <= 1))
    told = tf.strings.format("image/object/bbox is not from 0 to 1: {}", boxes)
    with tf.control_dependencies([tf.debugging.Assert(are_shares, [told])]):
        return tf.identity(boxes)


class Encoded(NamedTuple):
    """An image as PNG, its height and width in pixels, and its label."""

    content: bytes
    height: int
    width: int
    label: int


def write(path: Path, examples: Iterable[Encoded]) -> int:
    """Writes records in slim's format; returns how many."""
    count = 0
    # TensorFlow's types do not know that it can be used in a `with`.
    writer: Any = tf.io.TFRecordWriter(str(path))
    with writer:
        for each in examples:
            features = {
                "image/encoded": _bytes(each.content),
                "image/format": _bytes(b"png"),
                "image/class/label": _int64(each.label),
                "image/height": _int64(each.height),
                "image/width": _int64(each.width),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
            count += 1
    return count


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int64(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
