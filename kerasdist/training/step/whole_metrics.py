"""Metrics of the user's own, which see the whole batch on every replica.

Keras' metrics add up: each replica counts its own examples, and the sum over the replicas is what
one device counts. A metric of one's own may be a maximum, the last value, or a function such as
`metrics=[rmse]`, which gives a number per batch. Each replica therefore shows the others what such
a metric is given, and all of them compute it from all examples, as one device does. They hold the
same numbers, of which the first replica's are read.
"""

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_adapter, keras_stock, tensorflow_adapter
from kerasdist.private.replaced_method import method_replaced
from kerasdist.training import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.step import own_attributes, replica_step

# What replicas show each other: a variable is the same on all of them.
_SHOWN = (tf.Tensor, tf.RaggedTensor)
# Those that a step has updated with all examples; another step may leave them alone.
_updated: weakref.WeakSet = weakref.WeakSet()


def prepare(model) -> None:
    """Lets those metrics of `model` read what the first replica holds, before they are reset."""
    for metric in _prepared(model):
        _read_first(metric)


@contextlib.contextmanager
def updated_with_all(model) -> Generator[None]:
    """Updates those metrics of `model` with all examples, in a step that is run inside."""
    with contextlib.ExitStack() as stack:
        for metric in _prepared(model):
            stack.enter_context(method_replaced(metric, "update_state", _update, metric))
        yield


def add_up_others(model) -> None:
    """Lets those that a step has updated by another method of theirs be sums over the replicas."""
    for metric in _prepared(model):
        if metric not in _updated:
            _read_sum(metric)


def update_function(stock, metric, *args, **kwargs):
    """Stands before `update_state` of a metric that is made of a function, the user's or Keras'.

    `compile` makes such a metric when it first sees predictions.
    """
    if keras_stock.adds_up(metric):
        return stock(metric, *args, **kwargs)

    def update_state(*args, **kwargs):
        return stock(metric, *args, **kwargs)

    return _update(update_state, metric, *args, **kwargs)


def _prepared(model) -> list:
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.keeps_own_pace(strategy):
        return []
    return keras_stock.own_metrics_of(model)


def _update(update_state: Callable, metric, *args, **kwargs):
    step = replica_step.current()
    if step is None or step.is_only_replica:
        return update_state(*args, **kwargs)
    reason = _reason_to_stay_apart(step, (args, kwargs))
    if reason is not None:
        _add_up(metric, reason)
        return update_state(*args, **kwargs)
    _updated.add(metric)
    _read_first(metric)
    args, kwargs = _of_all((args, kwargs), step)
    # What it asks for is there: `global_mean` is a mean, and a number counts once.
    only = dataclasses.replace(
        step,
        is_only_replica=True,
        num_examples=step.global_num_examples,
        share=1.0,
        may_be_empty=False,
    )
    # Of what a metric holds in Python, lists as a rule, there is one for all replicas here.
    first, *_ = peers.local_replicas(tf.distribute.get_strategy())
    others = [] if peers.replica_id() == first else [metric]
    with replica_step.entered(only), own_attributes.each_kept(others):
        return update_state(*args, **kwargs)


def _read_first(metric) -> None:
    for variable in metric.variables:
        tensorflow_adapter.read_first_replica(variable.value)


def _read_sum(metric) -> None:
    for variable in metric.variables:
        tensorflow_adapter.read_sum(variable.value)


def _add_up(metric, reason: str) -> None:
    _read_sum(metric)
    warnings.warn(
        f"The metric '{metric.name}' is updated {reason}, so each replica updates it with its own "
        "examples alone. Its result is that of the sums of its variables, which is another one "
        "than on one device unless they add up, as totals and counts do.",
        stacklevel=2,
    )


def _reason_to_stay_apart(step, arguments) -> str | None:
    if tf.compat.v1.get_default_graph() is not step.graph:
        return "inside of a condition, a loop or a tf.function, where replicas cannot meet"
    for leaf in tf.nest.flatten(arguments):
        if isinstance(leaf, tf.SparseTensor) or (
            isinstance(leaf, _SHOWN) and leaf.dtype in (tf.string, tf.resource, tf.variant)
        ):
            return f"with a {type(leaf).__name__} of {leaf.dtype.name}, which cannot be summed"
    return None


def _of_all(arguments, step):
    """Returns arguments of an update with the rows of all replicas, in their order."""
    leaves = tf.nest.flatten(arguments)
    new = [leaf for leaf in leaves if isinstance(leaf, _SHOWN) and id(leaf) not in step.of_all]
    masks = {id(leaf): mask for leaf in new if (mask := keras_adapter.mask_of(leaf)) is not None}
    rows = [leaf for leaf in (*new, *masks.values()) if _has_rows(leaf, step)]
    parts = [part for leaf in rows for part in _parts(leaf)]
    wholes = iter(_joined(parts, step))
    found = {id(leaf): _rebuilt(leaf, wholes, step) for leaf in rows}
    for leaf in new:
        whole = found.get(id(leaf))
        if whole is None:
            whole = _mean_over_examples(leaf, step)
        elif id(leaf) in masks:
            keras_adapter.set_mask(whole, found[id(masks[id(leaf)])])
        step.of_all[id(leaf)] = leaf, whole  # Itself, too: while it lives, no other has its id.
    return tf.nest.pack_sequence_as(
        arguments,
        [step.of_all[id(leaf)][1] if isinstance(leaf, _SHOWN) else leaf for leaf in leaves],
    )


def _has_rows(leaf, step) -> bool:
    """Whether the first axis of a tensor counts examples: the same answer on every replica."""
    if isinstance(leaf, tf.RaggedTensor) or leaf.shape.rank is None or leaf.shape.rank == 0:
        return leaf.shape.rank != 0
    size, total = leaf.shape[0], step.global_num_examples
    if size is None or not isinstance(total, int):
        return size is None or tf.executing_eagerly()
    # A replica without examples has one that does not count.
    counts = {max(count, 1) for count in batches.counts_of(total, _num_replicas())}
    is_multiple = min(counts) > 1 and any(size % count == 0 for count in counts)
    return size in counts or is_multiple


def _num_replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


def _parts(leaf) -> list:
    """Returns the dense tensors that a tensor is made of."""
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_lengths()]
    return [leaf]


def _rebuilt(leaf, wholes, step):
    """Returns what `leaf` is over all replicas, of the next of the joined parts."""
    if isinstance(leaf, tf.RaggedTensor):
        values, *lengths = (next(wholes) for _ in _parts(leaf))
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    whole = next(wholes)
    if leaf.shape.rank is not None:
        whole.set_shape([_size_of_all(leaf.shape[0], step), *leaf.shape[1:]])
    return whole


def _size_of_all(size, step) -> int | None:
    """Returns how many rows all replicas have together, where all have as many."""
    total, num_replicas = step.global_num_examples, _num_replicas()
    is_known = size is not None and isinstance(total, int) and total % num_replicas == 0
    return size * num_replicas if is_known else None


def _joined(parts: list, step) -> list:
    """Returns tensors joined along their first axis, over the replicas that have examples.

    As sums of what is zero but for a replica's own rows, which every deployment can send.
    """
    if not parts:
        return []
    if step.may_be_empty:
        is_there = tf.cast(step.num_examples > 0, tf.int32)
        parts = [batches.rows(part, 0, tf.shape(part)[0] * is_there) for part in parts]
    sizes = tf.stack([tf.shape(part)[0] for part in parts])
    replica = peers.replica_id()  # Where a step is rehearsed, all steps say 0.
    own = tf.one_hot(replica, _num_replicas(), dtype=tf.float64)
    sizes = own[:, tf.newaxis] * tf.cast(sizes, tf.float64)
    (sizes,) = replica_step.sum_over_replicas([sizes])
    sizes = tf.cast(sizes, tf.int32)
    starts = tf.cumsum(sizes, exclusive=True)[replica]
    ends = tf.reduce_sum(sizes, axis=0) - starts - sizes[replica]
    padded = [
        _padded(_summable(part), starts[index], ends[index]) for index, part in enumerate(parts)
    ]
    wholes = [
        tf.cast(whole, part.dtype) for whole, part in zip(_summed(padded), parts, strict=True)
    ]
    if step.dependence:
        step.dependence.end_at(wholes)
    return wholes


def _padded(part, num_before, num_behind):
    others = tf.zeros([tf.rank(part) - 1, 2], tf.int32)
    paddings = tf.concat([[[num_before, num_behind]], others], axis=0)
    return tf.pad(part, paddings)


def _summable(part):
    """Returns a tensor in a type that sums on every device and holds its numbers exactly."""
    if part.dtype.is_floating or part.dtype.is_complex or part.dtype in (tf.int64, tf.uint64):
        return part
    return tf.cast(part, tf.float64)


def _summed(tensors: list) -> list:
    by_dtype: dict[tf.DType, list] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    sums: dict[int, Any] = {}
    for group in by_dtype.values():
        summed = replica_step.sum_over_replicas(group)
        sums.update(zip(map(id, group), summed, strict=True))
    return [sums[id(tensor)] for tensor in tensors]


def _mean_over_examples(leaf, step):
    """Returns a number that a replica computed, as the mean over all examples; others as it is."""
    if not leaf.dtype.is_floating:
        return leaf
    return replica_step.sum_over_replicas([leaf * tf.cast(step.share, leaf.dtype)])[0]
