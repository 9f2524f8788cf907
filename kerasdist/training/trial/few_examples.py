"""The examples of a batch that stand for all of them where a step is rehearsed."""

import contextlib
import sys
from collections.abc import Callable
from typing import Literal

import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.trial import tolerances
from kerasdist.training.trial.output_sizes import OutputSizes

# One for each replica, which shows what a mean of more hides, such as a threshold above it; a few;
# nearly all, for what a few do not show, as the mean of the 32 largest; the batch as it is.
HowMany = Literal["one", "few", "most", "all"]
# A step may fail with so few, and what trains be fine.
TOO_FEW = ("one", "few")
# Per replica. Enough for masks and weights to differ; a step of so few costs little.
_FEW = 4
# The most different whole numbers that may be classes or marks.
_CLASSES = 32


def with_enough(rehearse: Callable, model, batch) -> tuple:
    """Returns what a rehearsal gives: of a few examples, or of more where they are too few.

    Where a few have shown nothing, one for each replica is looked at as well, and nearly all where
    that costs little. Where a few fail, it is the batch as it is.

    Args:
        rehearse: Called as `rehearse(how_many=...)`; returns what it has found, or nothing, and
            something else. It fails with a few where a program takes the four largest losses, say,
            or where a mask leaves none of them. All workers call it.
        model: That is rehearsed.
        batch: Tensors [examples, ...].
    """
    sizes = OutputSizes()
    try:
        with sizes.counted(model):
            result = rehearse(how_many="few")
    except Exception:
        return rehearse(how_many="all")
    strategy = model.distribute_strategy
    num_replicas = strategy.num_replicas_in_sync
    further = {
        "one": _may_be_one(batch, num_replicas),
        "most": may_be_most(batch, num_replicas, sizes),
    }
    for how_many, is_possible in further.items():
        if peers.any_of(strategy, bool(result[0])):
            return result
        if not peers.any_of(strategy, not is_possible):
            with contextlib.suppress(Exception):
                result = rehearse(how_many=how_many)
    return result


def _may_be_one(batch, num_replicas: int) -> bool:
    """Whether each replica can have one example, and has more among a few."""
    sizes = _sizes(batch)
    return len(sizes) == 1 and max(sizes) > num_replicas


def may_be_most(batch, num_replicas: int, sizes: OutputSizes) -> bool:
    """Whether a batch has more examples than a few, and nearly all of them would cost little.

    Args:
        batch: Tensors [examples, ...].
        num_replicas: In all.
        sizes: What a few have cost.
    """
    ratio = batches.num_examples(batch) / (_FEW * num_replicas)
    return ratio > 1 and sizes.allow(ratio)


def of(batch, how_many: HowMany, num_replicas: int, *, few: int = _FEW):
    """Returns the examples of a batch to rehearse with.

    Args:
        batch: Tensors [examples, ...].
        how_many: Which of them.
        num_replicas: In all.
        few: Examples of each replica that are a few.
    """
    if how_many == "all":
        return batch
    return some_of(batch, {"one": 1, "few": few, "most": sys.maxsize}[how_many], num_replicas)


def some_of(batch, most: int, num_replicas: int):
    """Returns the first examples of a batch, so many that the replicas' shares are not equal.

    They are equal where each replica has one example. Two batches in one, such as 12 examples
    without labels and 4 with, have their proportion on every replica as a whole only.

    Args:
        batch: Tensors [examples, ...].
        most: Examples of each replica.
        num_replicas: In all.
    """
    sizes = _sizes(batch)
    if len(sizes) > 1:
        return batch
    number = min(most * num_replicas, *sizes)
    if number > num_replicas and number % num_replicas == 0:
        number -= 1
    return tf.nest.map_structure(
        lambda leaf: batches.rows(leaf, 0, number) if batches.has_first_axis(leaf) else leaf,
        batch,
    )


def _sizes(batch) -> set[int]:
    leaves = filter(batches.has_first_axis, tf.nest.flatten(batch))
    return {batches.num_examples(leaf) for leaf in leaves}


def touched(batch):
    """Returns a batch whose inputs differ in their last bits, where they are floats.

    Not labels and weights, which may be inputs, too: what is compared with a whole number stays.
    """

    def touch(leaf):
        if not tf.is_tensor(leaf) or leaf.dtype not in (tf.float32, tf.float64):
            return tf.identity(leaf) if tf.is_tensor(leaf) else leaf  # A batch of its own.
        is_exact = tf.equal(leaf, tf.round(leaf))
        if tf.reduce_all(is_exact) and tf.size(tf.unique(tf.reshape(leaf, [-1])).y) > _CLASSES:
            is_exact = False  # Pixels.
        return tf.where(is_exact, leaf, leaf * (1.0 + tolerances.LAST_BITS))

    def touch_all(data):  # Of ragged and sparse tensors, the parts.
        return tf.nest.map_structure(touch, data, expand_composites=True)

    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):  # Anchors, positives, ...
        return touch_all(batch)
    x, *others = batch
    leaves = tf.nest.flatten((touch_all(x), *others))
    return tf.nest.pack_sequence_as(batch, leaves)
