"""Leaves out the first batches of a dataset before they are made, for a `fit` that goes on.

What decides the order of the examples, such as `shuffle`, is done again, and what prepares each of
them, such as `map` and `batch`, is not:

    tensor_slices(paths).shuffle(n).map(load).batch(8)           # of the program
    tensor_slices(paths).shuffle(n).skip(8 * 400).map(load).batch(8)    # after 400 steps

A `shuffle` looks at no example. So where one comes after a `map`, it is done before it:

    records.map(decode).shuffle(n).batch(8)
    records.shuffle(n).skip(8 * 400).map(decode).batch(8)

Whole passes of a `repeat` over data of known length are not read at all:

    records.shuffle(n).repeat()                                  # of 1000 records
    records.shuffle(n).skip(200).concatenate(records.shuffle(n).repeat())     # after 3200 examples

The first part of a pipeline is the very dataset of the program, with its shuffles, which are in the
order that they would have had: each iterator that was made of it draws another one, also if nothing
is read from it. A `shuffle` behind another one draws when that one reads.
"""

import itertools
from collections.abc import Iterator

import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.data import pipeline_parts

# What makes one element of one, or one of several, each by itself.
_OF_ELEMENTS = {"map", "prefetch", "options", "assert_cardinality", "batch"}
# What needs all that comes before, or was made where nobody sees how.
_UNKNOWN = {"cache", "remote", "snapshot", "variant"}
# What draws an order, or numbers, for each iterator.
_DRAWN = {"shuffle", "random"}


def may_skip(dataset: tf.data.Dataset) -> bool:
    """Whether the rest of a dataset may be had without what comes before.

    Not if Python makes elements, which may count them, or if a `cache` keeps them.
    """
    names = dataset_adapter.transformations_of(dataset)
    return bool(names) and not _UNKNOWN & {*names} and not dataset_adapter.calls_python(dataset)


def begun_after(
    dataset: tf.data.Dataset,
    num_elements: int,
    *,
    num_made: int,
    num_read: int,
    is_at_end: bool = False,
) -> tf.data.Iterator | None:
    """Returns an iterator that begins after some elements, in a process that has made none yet.

    Args:
        dataset: One that `may_skip`.
        num_elements: How many are left out.
        num_made: How many iterators over the dataset were made before this one.
        num_read: How many of these were read to their end.
        is_at_end: Whether there are no more, so that nobody is going to read it.

    Returns:
        None where the order depends on all that these have read.
    """
    if (num_made or is_at_end) and not is_drawn_early(dataset):
        return None
    draw_late(dataset, num_read + is_at_end)
    for _ in range(num_made):
        iter(dataset)
    rest = without_first(dataset, num_elements, num_drawn=num_made)
    return iter(rest.with_options(dataset.options()))


def draw_late(dataset: tf.data.Dataset, num_read: int) -> None:
    """Lets shuffles that draw an order only when they are read draw as many as were read."""
    for late in _drawn_late(dataset):
        for _ in range(num_read):
            iter(late)


def knows_order(dataset: tf.data.Dataset) -> bool:
    """Whether the orders of all shuffles of a dataset are drawn when an iterator is made."""
    return is_drawn_early(dataset) and not any(_drawn_late(dataset))


def is_drawn_early(dataset: tf.data.Dataset) -> bool:
    """Whether it is known, without reading, how often each shuffle of a dataset draws an order."""
    return not dataset_adapter.changes_state(dataset) and not _is_drawn_while_read(dataset)


def _is_drawn_while_read(made: tf.data.Dataset, *, is_below: bool = False) -> bool:
    """Whether a dataset draws anew while it is read; `is_below` what makes iterators of it then."""
    name, inputs = dataset_adapter.transformation_of(made), dataset_adapter.inputs_of(made)
    if is_below and name in _DRAWN:
        return True
    is_below = is_below or name == "repeat" or (len(inputs) > 1 and name != "zip")
    return any(_is_drawn_while_read(each, is_below=is_below) for each in inputs)


def _drawn_late(made: tf.data.Dataset, *, is_late: bool = False) -> Iterator[tf.data.Dataset]:
    """Yields what draws when a `shuffle` behind it reads its first element."""
    name = dataset_adapter.transformation_of(made)
    if is_late and name in _DRAWN:
        yield made
    for each in dataset_adapter.inputs_of(made):
        yield from _drawn_late(each, is_late=is_late or name == "shuffle")


def without_first(made: tf.data.Dataset, number: int, *, num_drawn: int) -> tf.data.Dataset:
    """Returns a dataset without its first elements.

    Args:
        made: The dataset.
        number: How many.
        num_drawn: How many iterators were made of it before.
    """
    name, inputs = dataset_adapter.transformation_of(made), dataset_adapter.inputs_of(made)
    if not number:
        return made
    if name in _OF_ELEMENTS and not _has_obstacle(made):
        size = dataset_adapter.argument_of(made, "batch_size") if name == "batch" else 1
        rest = without_first(inputs[0], size * number, num_drawn=num_drawn)
        return pipeline_parts.again([made], rest)
    if name == "zip":
        return dataset_adapter.zipped_as(
            made, lambda each: without_first(each, number, num_drawn=num_drawn)
        )
    if name in ("take", "skip"):
        return _without_first_of_part(made, inputs[0], number, num_drawn=num_drawn)
    if name == "repeat" and not num_drawn:
        return _without_passes(made, inputs[0], number)
    if name == "shuffle":
        return _without_prepared(made, number, num_drawn=num_drawn)
    return made.skip(number)


def _has_obstacle(made: tf.data.Dataset) -> bool:
    """Whether a `map` has to see all elements, or cannot be done again."""
    if dataset_adapter.transformation_of(made) != "map":
        return False
    specs = [each.element_spec for each in dataset_adapter.lineage_of(made)[:2]]
    are_dense = all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(specs))
    return not are_dense or dataset_adapter.operation_of_state(made) is not None


def _without_first_of_part(
    made: tf.data.Dataset, data: tf.data.Dataset, number: int, *, num_drawn: int
) -> tf.data.Dataset:
    """Returns what `take` or `skip` has made of data, without its first elements."""
    count = dataset_adapter.argument_of(made, "count")
    if count < 0:  # All.
        return made.skip(number)
    if dataset_adapter.transformation_of(made) == "skip":
        return without_first(data, count + number, num_drawn=num_drawn)
    return without_first(data, number, num_drawn=num_drawn).take(max(0, count - number))


def _without_passes(
    repeated: tf.data.Dataset, data: tf.data.Dataset, number: int
) -> tf.data.Dataset:
    """Returns repeated data without its first elements; of whole passes only the order is drawn."""
    count, size = dataset_adapter.argument_of(repeated, "count"), int(data.cardinality())
    num_passes, number_left = divmod(number, max(size, 1))
    # At its end a `repeat` draws once more; TensorFlow leaves out one of a single pass.
    is_near_end = 0 <= count <= num_passes + 2
    if size <= 0 or is_near_end or not is_drawn_early(data):
        return repeated.skip(number)
    if _is_drawn_while_read(data, is_below=True):
        draw_late(data, num_passes)
        for _ in range(num_passes):
            iter(data)
    rest = without_first(data, number_left, num_drawn=num_passes)
    return rest.concatenate(data.repeat(-1 if count < 0 else count - num_passes - 1))


def _without_prepared(shuffled: tf.data.Dataset, number: int, *, num_drawn: int) -> tf.data.Dataset:
    """Returns shuffled data without its first elements, which are shuffled before a `map` there."""
    lineage = dataset_adapter.lineage_of(shuffled)[1:]
    before = list(itertools.takewhile(_prepares_elements, lineage))
    if "map" not in map(dataset_adapter.transformation_of, before):
        return shuffled.skip(number)
    data = dataset_adapter.shuffled_as(shuffled, lineage[len(before)])
    for _ in range(num_drawn):
        iter(data)
    iter(shuffled)  # The order that the other data has now.
    return pipeline_parts.again(before[::-1], data.skip(number))


def _prepares_elements(made: tf.data.Dataset) -> bool:
    name = dataset_adapter.transformation_of(made)
    return name in _OF_ELEMENTS - {"batch"} and not _has_obstacle(made)
