"""From a dataset's examples to the batches that `fit` and `evaluate` take."""

import tensorflow as tf
from absl import flags

from models.datasets import Dataset
from models.preprocessing import Preprocess
from models.usage_error import UsageError

_SHUFFLE_BUFFER = 10_000  # Examples; a smaller dataset is shuffled as a whole.


def define_flags(values: flags.FlagValues, *, split: str, batch_size: int) -> None:
    """Define the flags that say which examples are read and how; `split` ... are defaults."""

    def text(name: str, default: str | None, help: str) -> None:
        flags.DEFINE_string(name, default, help, flag_values=values)

    def count(name: str, default: int, help: str, *, at_least: int) -> None:
        flags.DEFINE_integer(name, default, help, lower_bound=at_least, flag_values=values)

    text("dataset_name", None, "digits, or any name of tensorflow-datasets.")
    text("dataset_dir", None, "Where the datasets are. Must exist; missing data is written here.")
    text("dataset_split_name", split, "Which part of the dataset to read.")
    text("preprocessing_name", None, "How images are prepared. Default: as the net wants it.")
    count("labels_offset", 0, "Subtracted from labels; those below are no class.", at_least=0)
    count("batch_size", batch_size, "Examples per step and clone.", at_least=1)
    count("num_preprocessing_threads", 4, "Threads that prepare images.", at_least=1)


def check(values: flags.FlagValues) -> None:
    """Raise UsageError where the flags cannot be used."""
    for name in "dataset_name", "dataset_dir":
        if not values[name].value:
            raise UsageError(
                f"--{name} is missing. For a start without a download: "
                "mkdir -p data, then --dataset_name=digits --dataset_dir=data"
            )


def num_classes(dataset: Dataset, *, labels_offset: int) -> int:
    """Return how many classes are left when labels below `labels_offset` are no class.

    Raises:
        UsageError: none is left.
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
    seed: int,
) -> tf.data.Dataset:
    """Return one epoch in batches of the global size, shuffled and distorted anew each time.

    The same `seed` gives the same batches, whatever `num_threads`.

    Returns:
        Pairs of images float32 [global_batch_size, image_size, image_size, channels] and labels
        float32 [global_batch_size, classes], one-hot. The last batch holds what is left over.
    """
    seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).batch(2)

    def prepare(example, seed):
        image, label = example
        image = preprocess(image, image_size=image_size, seed=seed)
        return image, _one_hot(label, dataset, labels_offset)

    buffer_size = min(dataset.num_examples, _SHUFFLE_BUFFER)
    examples = dataset.examples.shuffle(buffer_size, seed=seed, reshuffle_each_iteration=True)
    examples = tf.data.Dataset.zip(examples, seeds).map(prepare, num_parallel_calls=num_threads)
    return examples.batch(global_batch_size).prefetch(tf.data.AUTOTUNE)


def test_batches(
    dataset: Dataset,
    *,
    preprocess: Preprocess,
    image_size: int,
    labels_offset: int,
    global_batch_size: int,
    num_threads: int,
) -> tf.data.Dataset:
    """Return each example once, in the stored order, in the shapes of `train_batches`."""

    def prepare(image, label):
        image = preprocess(image, image_size=image_size, seed=None)
        return image, _one_hot(label, dataset, labels_offset)

    examples = dataset.examples.map(prepare, num_parallel_calls=num_threads)
    return examples.batch(global_batch_size).prefetch(tf.data.AUTOTUNE)


def _one_hot(label, dataset: Dataset, labels_offset: int):
    return tf.one_hot(label - labels_offset, dataset.num_classes - labels_offset)
