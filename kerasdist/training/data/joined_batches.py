"""Joins batches of a dataset: each element of the new one has the examples of several.

    dataset = joined_batches.joined(dataset, 4)      # Of 8 examples each: 32, and what is left.

They are in their order, and the last element has those that are left. Dense, ragged and sparse
tensors are joined along their first axis, nested in any way; None stays None.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def joined(dataset: tf.data.Dataset, num_batches: int) -> tf.data.Dataset:
    """Returns a dataset whose elements are batches of another one, joined.

    Where batches are padded to different lengths, its iterators fail with words that say so.

    Args:
        dataset: Of batches: tensors [examples, ...].
        num_batches: How many are joined; the last element has what is left.

    Raises:
        ValueError: A batch has something else than tensors with a first axis.
    """
    if num_batches == 1:
        return dataset
    spec = dataset.element_spec
    specs = tf.nest.flatten(spec)
    for each in specs:
        _check(each, spec, num_batches)

    def take_apart(*batch: Any) -> tuple:
        pairs = zip(tf.nest.flatten(batch), specs, strict=True)
        return tuple(_parts_of(leaf) for leaf, each in pairs if not _is_left_out(each))

    def join(*parts: Any) -> Any:
        left = iter(parts)
        leaves = [
            None if _is_left_out(each) else _joined_leaf(next(left), each, num_batches)
            for each in specs
        ]
        return tf.nest.pack_sequence_as(spec, leaves)

    return dataset.map(take_apart).ragged_batch(num_batches).map(join)


def _check(spec: Any, batch: Any, num_batches: int) -> None:
    if _is_left_out(spec):
        return
    is_known = isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec)
    if not is_known or spec.shape.rank == 0:
        raise ValueError(
            f"Each update is computed from {num_batches} batches joined along their first axis, "
            f"and a batch has something without such an axis. Received: {spec} in {batch}. Give "
            "each example its number, as `tf.fill([batch_size], number)` does."
        )


def _is_left_out(spec: Any) -> bool:
    """Whether a part of a batch is None; Keras' readers of Python data put an Optional there."""
    return isinstance(spec, tf.NoneTensorSpec | tf.OptionalSpec)


def _parts_of(leaf: Any) -> dict:
    """Returns what can be batched whatever its lengths, and what it takes to join it."""
    if isinstance(leaf, tf.RaggedTensor):
        return {"values": leaf}
    if isinstance(leaf, tf.SparseTensor):
        return {"values": leaf, "shape": leaf.dense_shape}
    # Flat: TensorFlow takes axes of unknown length for ragged ones.
    return {"values": tf.reshape(leaf, [-1]), "shape": tf.shape(leaf, tf.int64)}


def _joined_leaf(parts: dict, spec: Any, num_batches: int) -> Any:
    values = parts["values"]
    if isinstance(spec, tf.RaggedTensorSpec):
        return values.values
    shapes = parts["shape"]
    if isinstance(shapes, tf.RaggedTensor):
        shapes = shapes.to_tensor()  # Of unknown rank, which is the same for all.
    shape = tf.concat([[tf.reduce_sum(shapes[:, 0])], shapes[0, 1:]], axis=0)
    with tf.control_dependencies([_are_alike(shapes[:, 1:], spec, num_batches)]):
        if isinstance(spec, tf.SparseTensorSpec):
            return _joined_rows(values, shapes[:, 0], tf.identity(shape), spec.shape)
        flat = values.values if isinstance(values, tf.RaggedTensor) else values
        leaf = tf.reshape(flat, shape)
    return tf.ensure_shape(leaf, _open(spec.shape))


def _are_alike(shapes: Any, spec: Any, num_batches: int) -> tf.Operation:
    text = (
        f"Each update is computed from {num_batches} batches joined along their first axis, and "
        f"those of {spec} differ in another one, as where each is padded to its longest example. "
        "Pad all to one length, with `padded_shapes`, or give ragged tensors. Received shapes "
        "without the first axis:"
    )
    return tf.debugging.Assert(tf.reduce_all(shapes == shapes[:1]), [text, shapes])


def _joined_rows(
    batches: tf.SparseTensor, sizes: tf.Tensor, shape: tf.Tensor, known: Any
) -> tf.SparseTensor:
    """Returns sparse batches [batches, rows, ...] of so many rows each as [all rows, ...]."""
    starts = tf.cumsum(sizes, exclusive=True)
    rows = tf.gather(starts, batches.indices[:, 0]) + batches.indices[:, 1]
    indices = tf.concat([rows[:, tf.newaxis], batches.indices[:, 2:]], axis=1)
    sparse = tf.SparseTensor(indices, batches.values, shape)
    if known.rank is not None:
        sparse = tf.SparseTensor(
            tf.ensure_shape(indices, [None, known.rank]),
            batches.values,
            _with_known(shape, known),
        )
    return sparse


def _with_known(shape: Any, known: tf.TensorShape) -> tf.Tensor:
    """Returns a shape of which layers see what is known of it but for the first axis."""
    sizes: Sequence = known.as_list()[1:]
    return tf.stack([shape[0], *(shape[i + 1] if n is None else n for i, n in enumerate(sizes))])


def _open(shape: tf.TensorShape) -> tf.TensorShape:
    """Returns a shape with an open first axis."""
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])
