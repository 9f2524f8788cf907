"""Lets each worker prepare its own part of each batch, where every worker reads all the data.

What decides the order of the examples, such as `shuffle`, must be done by all. What a `map` does to
each example need not be: its part of each batch is chosen before the first `map` that gives the
same for an example in whatever order it is called.

    tensor_slices(paths).shuffle(n).map(load).batch(8)           # of the program

    tensor_slices(paths).shuffle(n)                              # of worker 1 of 2
    .window(8).flat_map(the last 4 of each).map(load).batch(4)

A window of the examples before they are prepared says how many a batch has, so that no worker has
to be told. The head of a pipeline is the very dataset of the program: its shuffles go on in the
order that they would have had.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_fit
from kerasdist.support import memory
from kerasdist.training.context import peers
from kerasdist.training.data import data_checks, element_order, pipeline_parts, row_maps
from kerasdist.training.data.batches import WorkerPart, part_of_worker

# What leaves each example as it is, or prepares it alone, and what decides which there are.
_OF_EXAMPLES = {"map", "prefetch", "options", "cache"}
_OF_ORDER = {"repeat", "skip", "take"}
_KNOWN = _OF_EXAMPLES | _OF_ORDER


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A dataset in parts; each list begins with what is done first.

    Attributes:
        whole: The dataset.
        head: Gives the examples before they are prepared.
        order: Datasets that decide the order of the examples, of some that are prepared already.
        examples: Datasets that prepare each example alone.
        batch: The one that puts batches together.
        batches: Datasets that leave every batch as it is.
    """

    whole: tf.data.Dataset
    head: tf.data.Dataset
    order: list[tf.data.Dataset]
    examples: list[tf.data.Dataset]
    batch: tf.data.Dataset
    batches: list[tf.data.Dataset]

    @property
    def batch_size(self) -> int:
        """The examples of a batch, but for the last one."""
        return int(dataset_adapter.argument_of(self.batch, "batch_size"))


def of_worker(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> tuple[tf.data.Dataset | None, str | None]:
    """Returns a dataset of this worker's part of each batch, and why there is none.

    Args:
        dataset: Of global batches.
        strategy: A strategy of ours.

    Returns:
        Dataset of `WorkerPart`, or None where every worker has to prepare all; and what is in the
        way in words, also of a `map` that stands before what is divided; None for nothing.
    """
    num_workers, index = peers.count(strategy), peers.index_of(strategy)
    pipeline, obstacle = parts_of(dataset)
    if pipeline is None:
        return None, obstacle
    if pipeline.batch_size < num_workers:
        size = pipeline.batch_size
        return None, f"batches of {size} are too small for {num_workers} workers to share"
    # A cache of a part holds what was prepared in an earlier call with the same dataset.
    kept = memory.of_part(dataset).rows_of_workers
    if (num_workers, index) not in kept:
        kept[num_workers, index] = _part_of(pipeline, num_workers, index)
    return kept[num_workers, index], obstacle


def parts_of(dataset: tf.data.Dataset) -> tuple[Pipeline | None, str | None]:
    """Returns a dataset in parts, to be cut before it prepares examples; or None; and why not.

    There is no reason where it prepares none.
    """
    lineage = dataset_adapter.lineage_of(dataset)
    names = list(map(dataset_adapter.transformation_of, lineage))
    behind = next((i for i, name in enumerate(names) if "batch" in name or "window" in name), None)
    if behind is None or not dataset_adapter.has_map(dataset):
        return None, None
    if obstacle := _obstacle_behind(lineage[:behind]):
        return None, obstacle
    if names[behind] != "batch":
        return None, f"`{names[behind]}`"
    examples, order, obstacle = _own_of(lineage[behind + 1 :])
    if not (examples or ("map" in names[:behind] and not obstacle)):
        return None, obstacle
    # The input of the first `map`: all that is between it and `batch` is in one of the two.
    head = lineage[behind + 1 + len(examples) + len(order)]
    if of_specs := _obstacle_of_specs(dataset, [head, *examples]):
        return None, of_specs
    return Pipeline(
        whole=dataset,
        head=head,
        order=order[::-1],
        examples=examples[::-1],
        batch=lineage[behind],
        batches=lineage[:behind][::-1],
    ), obstacle


def _obstacle_behind(behind: list[tf.data.Dataset]) -> str | None:
    """Returns why what is done with batches cannot be done with parts of them."""
    for each in behind:
        name = dataset_adapter.transformation_of(each)
        if name not in _KNOWN or (name == "map" and not _is_of_rows(each)):
            return f"`{name}` after `batch`"
        if name == "cache" and dataset_adapter.argument_of(each, "filename"):
            return "`cache(filename)`"
    return None


def _is_of_rows(mapped: tf.data.Dataset) -> bool:
    """Whether a `map` of batches does with a worker's rows what it does with them in the batch."""
    (batches,) = dataset_adapter.lineage_of(mapped)[1:2]
    specs = tf.nest.flatten(batches.element_spec)
    # One that was traced for a number of rows takes no other.
    are_open = all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] is None
        for spec in specs
    )
    if not are_open or dataset_adapter.operation_of_state(mapped) is not None:
        return False
    return keras_fit.weighs_classes(mapped) or row_maps.treats_rows_alone(mapped, len(specs))


def _own_of(before: list[tf.data.Dataset]) -> tuple[list, list, str | None]:
    """Returns what comes before the batches, as far as each worker can do it for its own part.

    Args:
        before: Datasets, the last one first.

    Returns:
        Those that prepare examples, the last a `map`; those that decide their order; and what is in
        the way of a `map` that is left.
    """
    examples: list = []
    order: list = []
    own: tuple[list, list] = [], []
    for each in before:
        name = dataset_adapter.transformation_of(each)
        if obstacle := _obstacle_of(each, name, order):
            return *own, obstacle if dataset_adapter.has_map(each) else None
        (order if name in _OF_ORDER else examples).append(each)
        if name == "map":
            own = examples.copy(), order.copy()
    return *own, None


def _obstacle_of(dataset: tf.data.Dataset, name: str, order: list) -> str | None:
    """Returns why no part can be chosen before a dataset is made of another one."""
    if name == "map":
        return _obstacle_of_map(dataset)
    if name == "cache" and dataset_adapter.argument_of(dataset, "filename"):
        return "`cache(filename)`"
    if name == "cache" and order:
        return f"`{dataset_adapter.transformation_of(order[0])}` after `cache`"
    if name in _KNOWN:
        return None
    is_inside = dataset_adapter.has_map_inside(dataset)
    return f"`map` within `{name}`" if is_inside else f"`{name}` after `map`"


def _obstacle_of_map(dataset: tf.data.Dataset) -> str | None:
    operation = dataset_adapter.operation_of_state(dataset)
    if operation is None:
        return None
    if "PyFunc" in operation:
        return "`map` calls Python"
    if dataset_adapter.is_draw(operation):
        return "`map` draws random numbers in the order of its calls"
    return f"`map` has a state: {operation}"


def _obstacle_of_specs(dataset: tf.data.Dataset, before: list) -> str | None:
    specs = tf.nest.flatten([each.element_spec for each in before])
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        return "its examples hold more than dense tensors"
    # Where a step turns out to need whole batches, the workers send each other their rows.
    for spec in tf.nest.flatten(dataset.element_spec):
        if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
            return "its batches hold more than numbers"
        if not spec.shape[1:].is_fully_defined():
            return "the shapes of its examples are not known"
    return None


def batches_of_worker(
    dataset: tf.data.Dataset, num_workers: int, index: int
) -> tf.data.Dataset | None:
    """Returns each `num_workers`-th batch of a dataset, of which no other one is prepared.

    None where all have to be: a `cache` would then keep a part of what it is given, and a smaller
    batch in the midst of others be filled with examples of the next one.
    """
    pipeline, _ = parts_of(dataset)
    if pipeline is None or num_workers == 1:
        return None
    names = list(map(dataset_adapter.transformation_of, (*pipeline.examples, *pipeline.batches)))
    order = list(filter(_is_of_order, pipeline.batches))
    if "cache" in names or (order and not _is_cut_off(pipeline)):
        return None
    windows = pipeline_parts.again(order, _windows_of(pipeline))
    own = windows.shard(num_workers, index).enumerate()
    data = own.flat_map(lambda _, parts: tf.data.Dataset.zip(parts))
    left = [each for each in pipeline.batches if not _is_of_order(each)]
    return _prepared(pipeline, data, pipeline.batch_size, left, pipeline_parts.of_element)


def _is_of_order(dataset: tf.data.Dataset) -> bool:
    return dataset_adapter.transformation_of(dataset) in _OF_ORDER


def _part_of(pipeline: Pipeline, num_workers: int, index: int) -> tf.data.Dataset:
    """Returns the dataset of one worker's part of each batch."""
    data = _windows_of(pipeline).enumerate().flat_map(_chooser(num_workers, index))
    _, num_rows = part_of_worker(pipeline.batch_size, num_workers, index)
    return _prepared(pipeline, data, num_rows, pipeline.batches, _of_rows)


def _windows_of(pipeline: Pipeline) -> tf.data.Dataset:
    """Returns datasets of the examples of each batch before they are prepared."""
    data = element_order.in_order(pipeline.head)
    # A `shuffle` right before a `repeat` is made one with it by TensorFlow, and draws otherwise.
    data = data.with_options(tf.data.Options()) if pipeline.order else data
    data = pipeline_parts.again(pipeline.order, data)
    return data.window(pipeline.batch_size, drop_remainder=_is_cut_off(pipeline))


def _is_cut_off(pipeline: Pipeline) -> bool:
    return bool(dataset_adapter.argument_of(pipeline.batch, "drop_remainder"))


def _prepared(
    pipeline: Pipeline, data: tf.data.Dataset, num_rows: int, batches: list, given: Callable
) -> tf.data.Dataset:
    """Returns batches of examples that are chosen, made by what comes after the choice.

    Args:
        pipeline: Of which dataset.
        data: The examples.
        num_rows: Of a batch.
        batches: What is done with them.
        given: Makes what a `map` calls with its elements of a function of the program's elements.
    """
    data = pipeline_parts.again(pipeline.examples, data, call=given)
    data = data.batch(num_rows, drop_remainder=_is_cut_off(pipeline))
    data = pipeline_parts.again(batches, data, call=given)
    return element_order.with_order_option(data.with_options(pipeline.whole.options()))


def _of_rows(function: Callable) -> Callable:
    @tf.autograph.experimental.do_not_convert
    def prepare(part: WorkerPart) -> WorkerPart:
        return WorkerPart(part.total, part.digest, function(part.rows))

    return prepare


def _chooser(num_workers: int, index: int) -> Callable:
    """Returns a function of a window's number and datasets that gives the rows of a worker."""

    @tf.autograph.experimental.do_not_convert
    def choose(number: Any, parts: Any) -> tf.data.Dataset:
        window = tf.data.Dataset.zip(parts)
        total = window.cardinality()
        first, count = part_of_worker(total, num_workers, index)
        # Fewer examples than workers: who has none borrows one, which does not count.
        first = tf.minimum(first, total - 1)
        rows = window.skip(first).take(tf.maximum(count, 1))
        totals = tf.data.Dataset.from_tensors(total).repeat()
        digests = _digests(window, tf.where(number > 0, tf.ones_like(total), total))
        return tf.data.Dataset.zip(WorkerPart(totals, digests, rows))

    return choose


def _digests(examples: tf.data.Dataset, count: Any) -> tf.data.Dataset:
    """Returns a number that differs for other first examples, or another order; and zeros."""

    @tf.autograph.experimental.do_not_convert
    def add(state: tuple, example: Any) -> tuple:
        position, total = state
        total += position * data_checks.digest(example)
        return (position + 1, total), total

    zero = tf.zeros([], tf.float64)
    # TensorFlow takes `reduce` for an operation of which it keeps no state.
    sums = examples.scan((zero + 1, zero), add).take(count).skip(count - 1)
    return sums.concatenate(tf.data.Dataset.from_tensors(zero).repeat())
