"""From a dataset's examples to the batches that `fit` and `evaluate` take."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Generator, Sequence
from typing import Any

import tensorflow as tf
from absl import flags

from .datasets import Dataset
from .preprocessing import Preprocess
from .typed_flags import define_count, define_text
from .usage_error import UnreadableDataError, UsageError

# TensorFlow's errors for an example that cannot be used; not those for a lost peer.
READ_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    UnicodeDecodeError,  # See `datasets.damage`.
)
# In a FailedPreconditionError, which has other causes in a cluster: a file has too few records.
_TOO_FEW = "was expected to contain"
MOST_AT_ONCE = 1024  # Files or images; TensorFlow makes room for all at the start.
_SHUFFLE_BUFFER = 10_000  # Contents of files; a smaller dataset is shuffled as a whole.


def define_flags(values: flags.FlagValues, *, split: str, batch_size: int) -> None:
    """Defines the flags that say which examples are read and how; `split` ... are defaults."""
    text = functools.partial(define_text, values)
    count = functools.partial(define_count, values)

    define_dataset_flags(values)
    text("dataset_split_name", split, "The split to read, or a part of it: train[:80%].")
    text("preprocessing_name", None, "How images are prepared. Default: as the net needs it.")
    count("labels_offset", 0, "Subtracted from labels; smaller labels are invalid.", at_least=0)
    flags.DEFINE_bool(
        "ignore_other_labels",
        False,
        "Give examples with invalid labels the weight 0. Default: they end the run.",
        flag_values=values,
    )
    flags.DEFINE_bool("use_grayscale", False, "Convert colored images to gray.", flag_values=values)
    count("batch_size", batch_size, "Examples per step and clone.")
    count(
        "num_preprocessing_threads",
        4,
        "Threads that prepare images, for each clone.",
        at_most=MOST_AT_ONCE,
    )


def define_dataset_flags(values: flags.FlagValues) -> None:
    """Defines the flags that say which dataset is read."""
    define_text(
        values,
        "dataset_name",
        None,
        "digits, folder (of images), TFRecords in slim's format, or any name of "
        "tensorflow-datasets.",
    )
    define_text(
        values,
        "dataset_dir",
        None,
        "The folder of the datasets. It must exist; a missing dataset is written there.",
    )


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    for name in "dataset_name", "dataset_dir":
        if not values[name].value:
            raise UsageError(
                f"--{name} is missing. To begin without a download: mkdir -p data, then "
                "--dataset_name=digits --dataset_dir=data"
            )


def in_the_channels_asked_for(dataset: Dataset, values: flags.FlagValues) -> Dataset:
    """Returns the dataset; with --use_grayscale, of gray images."""
    if not values.use_grayscale or dataset.channels == 1:
        return dataset

    def read(record):
        image, label = dataset.read(record)
        return tf.image.rgb_to_grayscale(image), label

    return dataclasses.replace(dataset, read=read, channels=1)


def num_classes(dataset: Dataset, *, labels_offset: int) -> int:
    """Returns how many classes are left when labels below `labels_offset` are invalid.

    Raises:
        UsageError: None is left.
    """
    if labels_offset >= dataset.num_classes:
        raise UsageError(
            f"--labels_offset must be less than the number of classes, {dataset.num_classes}. "
            f"Received: {labels_offset}."
        )
    return dataset.num_classes - labels_offset


def train_batches(
    dataset: Dataset,
    *,
    preprocess: Preprocess,
    image_size: int,
    labels_offset: int,
    global_batch_size: int,
    num_threads: int,
    num_readers: int,
    seed: int,
    num_batches: int | None = None,
    ignore_other_labels: bool = False,
) -> tf.data.Dataset:
    """Returns one epoch after another in batches, each shuffled and distorted anew.

    What is shuffled is what is stored, such as the content of JPEG files, and not the images. All
    that decides the order comes before the `map`, so that each worker prepares its part alone, and
    a training that goes on prepares nothing of what it skips. A batch is full also where an epoch
    ends in its midst, as slim's are. The same `seed` and `num_readers` give the same batches,
    whatever `num_threads`.

    Args:
        dataset: A split.
        preprocess: How its images are prepared.
        image_size: Their height and width then, in pixels.
        labels_offset: Subtracted from labels; smaller labels are invalid.
        global_batch_size: Examples of a batch, but not more than the dataset has.
        num_threads: Threads that prepare images, or `tf.data.AUTOTUNE`.
        num_readers: Files of records that are read beside each other.
        seed: Decides the order and the distortions.
        num_batches: After how many batches the data ends; None for no end.
        ignore_other_labels: Whether examples with invalid labels are no error.

    Returns:
        Pairs of images float32 [batch, image_size, image_size, channels] and labels float32
        [batch, classes], one-hot. With `ignore_other_labels` also the weights float32 [batch], 0 or
        1.

    Raises:
        tf.errors.InvalidArgumentError: While it is read: a label is invalid; see `damage_named`.
    """
    target = _Target(dataset, labels_offset, ignore_other_labels)

    @tf.autograph.experimental.do_not_convert  # Which takes as long as the tracing.
    def prepare(position, numbered):
        number, record = numbered
        image, label = dataset.read(record)
        distortion = tf.stack([tf.cast(seed, tf.int64), position])
        boxes = dataset.boxes_for(preprocess, record)
        image = preprocess(image, image_size=image_size, seed=distortion, **boxes)
        return image, *target(label, number)

    batch_size = _batch_size(dataset, global_batch_size)
    records = dataset.numbered_records(num_readers=num_readers, seed=seed)
    buffer_size = dataset.num_examples
    if dataset.is_in_files:
        buffer_size = min(buffer_size, _SHUFFLE_BUFFER)
    records = records.shuffle(buffer_size, seed=seed, reshuffle_each_iteration=True).repeat()
    if num_batches is not None:
        records = records.take(num_batches * batch_size)
    examples = records.enumerate().map(prepare, num_parallel_calls=num_threads)
    return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def test_batches(
    dataset: Dataset,
    *,
    preprocess: Preprocess,
    image_size: int,
    labels_offset: int,
    global_batch_size: int,
    num_threads: int,
    ignore_other_labels: bool = False,
) -> tf.data.Dataset:
    """Returns each example once, in the stored order, in the shapes of `train_batches`.

    The last batch holds what is left over.
    """

    @tf.autograph.experimental.do_not_convert
    def prepare(number, record):
        image, label = dataset.read(record)
        image = preprocess(image, image_size=image_size, seed=None)
        return image, *target(label, number)

    target = _Target(dataset, labels_offset, ignore_other_labels)
    examples = dataset.numbered_records().map(prepare, num_parallel_calls=num_threads)
    return examples.batch(_batch_size(dataset, global_batch_size)).prefetch(tf.data.AUTOTUNE)


def _batch_size(dataset: Dataset, global_batch_size: int) -> int:
    # `batch` allocates memory for all examples of a batch, even for those that do not exist.
    return min(global_batch_size, dataset.num_examples)


class _Target:
    """Turns a label into the target of the model, in the graph of the pipeline."""

    def __init__(self, dataset: Dataset, offset: int, ignores_others: bool):
        self._num_classes, self._offset = dataset.num_classes - offset, offset
        self._ignores_others = ignores_others

    def __call__(self, label: Any, number: tf.Tensor) -> tuple:
        """Returns the one-hot label, and a weight if other labels are ignored.

        Args:
            label: int64 scalar, as it is stored.
            number: int64 scalar, of the example in its split, from 0.
        """
        position = label - self._offset
        is_class = (position >= 0) & (position < self._num_classes)
        one_hot = tf.one_hot(position, self._num_classes)
        if self._ignores_others:
            return one_hot, tf.cast(is_class, tf.float32)
        text = tf.strings.format("Label {} of example {}", (label, number))
        with tf.control_dependencies([tf.debugging.Assert(is_class, [text])]):
            return (tf.identity(one_hot),)


@contextlib.contextmanager
def damage_named(values: flags.FlagValues, *read: Dataset | None) -> Generator[None]:
    """Names the file and the record if something inside cannot read its data.

    Args:
        values: The flags.
        *read: The datasets that are read.

    Raises:
        UnreadableDataError: An example cannot be used.
    """
    try:
        yield
    except READ_ERRORS as error:
        if isinstance(error, tf.errors.FailedPreconditionError) and _TOO_FEW not in str(error):
            raise
        if told := _wrong_label(error, values) or _damage(values, read):
            raise UnreadableDataError(told) from error
        raise


def _wrong_label(error: Exception, values: flags.FlagValues) -> str:
    found = re.search(r"Label (-?\d+) of example (\d+)", str(error))
    if not found:
        return ""
    return (
        f"Label {found[1]} of example {found[2]} (from 0, in the stored order of the split) of "
        f"--dataset_name {values.dataset_name!r} is not one of the classes that --labels_offset="
        f"{values.labels_offset} leaves. Fix the data, or add --ignore_other_labels to give such "
        "examples the weight 0."
    )


def _damage(values: flags.FlagValues, read: Sequence[Dataset | None]) -> str:
    """Returns what is damaged, which only reading everything again can tell; "" if nothing is."""
    told = next(filter(None, (dataset.damage() for dataset in read if dataset)), "")
    return told and f"--dataset_name {values.dataset_name!r}: {told}"
