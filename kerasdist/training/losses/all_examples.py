"""Show replicas the rows of the others, so that each computes from all examples.

A metric that is a maximum, and a loss that compares examples, are no sums over the replicas. Each
replica therefore adds its rows, padded with zeros where the rows of the others belong, to those of
the others, and has the rows of the whole batch:

    arguments = all_examples.of_all(arguments, replica)
    with all_examples.as_one_device(replica):
        ...                                 # Every replica computes the same.
"""

import contextlib
import dataclasses
from collections.abc import Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import collectives, keras_losses
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import randomness
from kerasdist.training.replica import replicas
from kerasdist.training.replica.replicas import Part

# What replicas show each other: a variable is the same on all of them.
_SHOWN = (tf.Tensor, tf.RaggedTensor)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """A tensor that a replica has shown the others.

    Attributes:
        tensor: Itself, too: while it lives, no other has its id.
        parts: The dense tensors that it is made of, on this replica.
        wholes: The same over all replicas.
        starts: Where in each of these this replica's rows begin; None where they are no rows but
            the means over all examples.
    """

    tensor: Any
    parts: list
    wholes: list
    starts: list | None


def reason_to_stay_apart(arguments: Any, replica: Part) -> str | None:
    """Returns in words why replicas cannot show each other these arguments; None where they can."""
    replica.check_can_meet()
    if not replica.is_in_step_graph():
        return "inside of a condition, a loop or a tf.function, where replicas cannot meet"
    for leaf in tf.nest.flatten(arguments):
        if isinstance(leaf, tf.SparseTensor) or (
            isinstance(leaf, _SHOWN) and leaf.dtype in (tf.string, tf.resource, tf.variant)
        ):
            return f"with a {type(leaf).__name__} of {leaf.dtype.name}, which cannot be summed"
    return None


@contextlib.contextmanager
def as_one_device(replica: Part) -> Generator[None]:
    """Lets a replica that has all examples be the only one inside: all draw the same numbers."""
    with replicas.entered(replica.as_one_device()), randomness.graph_seed_of_all():
        yield


def of_all(arguments: Any, replica: Part, *, have_gradients: bool = False) -> Any:
    """Returns arguments with the rows of all replicas, in their order.

    Args:
        arguments: Tensors, nested, of this replica. The others must give as many.
        replica: This replica.
        have_gradients: Whether a loss of all examples is computed from them, the same on every
            replica. Its gradient goes to this replica's own rows alone, divided by `share`: what
            the replicas have, weighed by their shares, then adds up to the gradient of one device.
    """
    leaves = tf.nest.flatten(arguments)
    _show([leaf for leaf in leaves if isinstance(leaf, _SHOWN)], replica)
    return tf.nest.pack_sequence_as(
        arguments,
        [
            _whole(leaf, replica, have_gradients) if isinstance(leaf, _SHOWN) else leaf
            for leaf in leaves
        ],
    )


def start_of(arguments: Any, replica: Part) -> Any:
    """Returns which of all examples is the first of this replica: int32 scalar; 0 for no rows.

    Args:
        arguments: Tensors, nested, that `of_all` has been given.
        replica: This replica.
    """
    for leaf in tf.nest.flatten(arguments):
        shown = replica.of_all.get(id(leaf))
        if shown is not None and shown.starts is not None:
            # There may be several rows for each example.
            return shown.starts[0] * replica.global_num_examples // tf.shape(shown.wholes[0])[0]
    return tf.constant(0)


def _show(leaves: list, replica: Part) -> None:
    """Sends what has not been sent in this step, in one message for each dtype."""
    masks = [mask for leaf in leaves if (mask := keras_losses.mask_of(leaf)) is not None]
    new = {id(leaf): leaf for leaf in (*leaves, *masks) if id(leaf) not in replica.of_all}
    rows = [leaf for leaf in new.values() if _has_rows(leaf, replica)]
    parts = [part for leaf in rows for part in _parts(leaf)]
    joined = iter(_joined(parts, replica))
    for leaf in new.values():
        if not any(leaf is each for each in rows):
            mean = _mean_over_examples(leaf, replica)
            replica.of_all[id(leaf)] = _Shown(tensor=leaf, parts=[leaf], wholes=[mean], starts=None)
            continue
        own, wholes, starts = zip(*(next(joined) for _ in _parts(leaf)), strict=True)
        replica.of_all[id(leaf)] = _Shown(
            tensor=leaf, parts=list(own), wholes=list(wholes), starts=list(starts)
        )


def _whole(leaf: Any, replica: Part, have_gradients: bool) -> Any:
    """Returns what a tensor that has been shown is over all replicas."""
    shown = replica.of_all[id(leaf)]
    wholes = _with_gradients(shown, replica) if have_gradients else shown.wholes
    whole = _rebuilt(leaf, wholes)
    if not isinstance(leaf, tf.RaggedTensor) and leaf.shape.rank is not None:
        is_row = shown.starts is not None
        size = [_size_of_all(leaf.shape[0], replica)] if is_row else leaf.shape[:1]
        whole.set_shape([*size, *leaf.shape[1:]])
    mask = keras_losses.mask_of(leaf)
    if mask is not None:
        keras_losses.set_mask(whole, _whole(mask, replica, have_gradients=False))
    return whole


def _with_gradients(shown: _Shown, replica: Part) -> list:
    starts = shown.starts or [None] * len(shown.parts)
    return [
        _with_gradient(part, whole, start, replica.share) if part.dtype.is_floating else whole
        for part, whole, start in zip(shown.parts, shown.wholes, starts, strict=True)
    ]


def _with_gradient(part: tf.Tensor, whole: tf.Tensor, start: Any, share: Any) -> tf.Tensor:
    """Returns `whole`, of which the rows from `start` have a gradient: that of `part` over `share`.

    A mean over all examples depends on `part` by its share, which leaves the gradient as it is.
    """

    def backward(gradient: Any) -> list:
        gradient = tf.convert_to_tensor(gradient)
        if start is None:
            return [gradient]
        own = batches.rows(gradient, start, start + tf.shape(part)[0])
        return [tf.math.divide_no_nan(own, tf.cast(share, own.dtype))]

    with collectives.without_gradient():
        result = tf.identity(whole)
    collectives.give_gradient([result], [part], backward, name="RowsOfAllReplicas")
    return result


def _has_rows(leaf: Any, replica: Part) -> bool:
    """Whether the first axis of a tensor counts examples: the same answer on every replica."""
    if isinstance(leaf, tf.RaggedTensor) or leaf.shape.rank is None or leaf.shape.rank == 0:
        return leaf.shape.rank != 0
    size, total = leaf.shape[0], replica.global_num_examples
    if size is None or not isinstance(total, int):
        return size is None or tf.executing_eagerly()
    # A replica without examples has one that does not count.
    counts = {max(count, 1) for count in batches.counts_of(total, _num_replicas())}
    is_multiple = min(counts) > 1 and any(size % count == 0 for count in counts)
    return size in counts or is_multiple


def _num_replicas() -> int:
    return peers.num_replicas(tf.distribute.get_strategy())


def _parts(leaf: Any) -> list:
    """Returns the dense tensors that a tensor is made of."""
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_lengths()]
    return [leaf]


def _rebuilt(leaf: Any, wholes: list) -> Any:
    """Returns what `leaf` is over all replicas, of its joined parts."""
    if isinstance(leaf, tf.RaggedTensor):
        values, *lengths = wholes
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    return wholes[0]


def _size_of_all(size: int | None, replica: Part) -> int | None:
    """Returns how many rows all replicas have together, where all have as many."""
    total, num_replicas = replica.global_num_examples, _num_replicas()
    is_known = size is not None and isinstance(total, int) and total % num_replicas == 0
    return size * num_replicas if is_known else None


def _joined(parts: list, replica: Part) -> list[tuple]:
    """Joins tensors along their first axis, over the replicas that have examples.

    As sums of what is zero but for a replica's own rows, which every deployment can send.

    Returns:
        For each of them: the rows of this replica, those of all, and where in these its own begin.
    """
    if not parts:
        return []
    if replica.may_be_empty:
        is_there = tf.cast(replica.num_examples > 0, tf.int32)
        parts = [batches.rows(part, 0, tf.shape(part)[0] * is_there) for part in parts]
    sizes = tf.stack([tf.shape(part)[0] for part in parts])
    position = peers.replica_id()  # In a trial, all replicas say 0.
    own = tf.one_hot(position, _num_replicas(), dtype=tf.float64)
    sizes = own[:, tf.newaxis] * tf.cast(sizes, tf.float64)
    sizes = tf.cast(replica.total(sizes), tf.int32)
    starts = tf.cumsum(sizes, exclusive=True)[position]
    ends = tf.reduce_sum(sizes, axis=0) - starts - sizes[position]
    padded = [
        _padded(_summable(part), starts[index], ends[index]) for index, part in enumerate(parts)
    ]
    wholes = [
        tf.cast(whole, part.dtype)
        for whole, part in zip(_summed(padded, replica), parts, strict=True)
    ]
    if replica.dependence:
        replica.dependence.end_at(wholes)
    return list(zip(parts, wholes, tf.unstack(starts, len(parts)), strict=True))


def _padded(part: tf.Tensor, num_before: tf.Tensor, num_behind: tf.Tensor) -> tf.Tensor:
    others = tf.zeros([tf.rank(part) - 1, 2], tf.int32)
    paddings = tf.concat([[[num_before, num_behind]], others], axis=0)
    return tf.pad(part, paddings)


def _summable(part: tf.Tensor) -> tf.Tensor:
    """Returns a tensor in a type that sums on every device and holds its numbers exactly."""
    if part.dtype.is_floating or part.dtype.is_complex or part.dtype in (tf.int64, tf.uint64):
        return part
    # Classes of pixels, and masks, then go with the predictions in one message.
    return tf.cast(part, tf.float32 if part.dtype.size <= 2 else tf.float64)


def _summed(tensors: list, replica: Part) -> list:
    by_dtype: dict[tf.DType, list] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    sums: dict[int, Any] = {}
    for group in by_dtype.values():
        summed = replica.sum(group)
        sums.update(zip(map(id, group), summed, strict=True))
    return [sums[id(tensor)] for tensor in tensors]


def _mean_over_examples(leaf: tf.Tensor, replica: Part) -> tf.Tensor:
    """Returns a number that a replica computed, as the mean over all examples; others as it is."""
    if not leaf.dtype.is_floating:
        return leaf
    return replica.total(leaf * tf.cast(replica.share, leaf.dtype))
