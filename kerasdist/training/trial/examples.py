"""The examples of a trial: how many, in which precision, touched by rounding, and perturbed.

Perturbed weights tell what a step computes from what rounding makes of it: with other weights
close by, rounding gives another number each time, and what is computed nearly the same one.
"""

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_layers
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.hooks import layer_outputs
from kerasdist.training.trial import tolerances

# "one" for each replica shows what a mean of more hides, such as a threshold above it; "few" are
# enough for most; "most" are nearly all, for what a few do not show, as the mean of the 32 largest;
# "all" is the batch as it is.
HowMany = Literal["one", "few", "most", "all"]
# A step may fail with so few, and what trains be fine.
TOO_FEW = ("one", "few")
# Per replica. Enough for masks and weights to differ; a step of so few costs little.
_FEW = 4
# The most different whole numbers that may be classes or marks.
_CLASSES = 32
# The outputs of all layers in all runs of a trial may have so many: a few seconds, little memory.
_MOST_BYTES = 2**27

_T = TypeVar("_T")


class OutputSizes:
    """Adds up the bytes that layers give in a trial: whether one of more examples costs much."""

    def __init__(self):
        self._num_bytes = 0

    @contextlib.contextmanager
    def counted(self, model: keras.Model) -> Generator[None]:
        """Counts what the layers of a model give inside, eagerly."""
        layers = [each for each in keras_layers.layers_of(model) if each is not model]
        with layer_outputs.watched(layers, self._note):
            yield

    def _note(self, _: Any, output: Any) -> None:
        leaves = tf.nest.flatten(output, expand_composites=True)
        self._num_bytes += sum(
            leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves if tf.is_tensor(leaf)
        )

    def allow(self, ratio: float) -> bool:
        """Whether so many times as many examples would still cost little."""
        return self._num_bytes * ratio <= _MOST_BYTES


def may_be_one(batch: Any, num_replicas: int) -> bool:
    """Whether each replica can have one example, and has more among a few."""
    sizes = _sizes(batch)
    return len(sizes) == 1 and max(sizes) > num_replicas


def may_be_most(batch: Any, num_replicas: int, sizes: OutputSizes) -> bool:
    """Whether a batch has more examples than a few, and nearly all of them would cost little.

    Args:
        batch: Tensors [examples, ...].
        num_replicas: In all.
        sizes: What a few have cost.
    """
    ratio = batches.num_examples(batch) / (_FEW * num_replicas)
    return ratio > 1 and sizes.allow(ratio)


def of(batch: Any, how_many: HowMany, num_replicas: int, *, few: int = _FEW) -> Any:
    """Returns the first examples of a batch, so many that the replicas' shares are not equal.

    They are equal where each replica has one example. Two batches in one, such as 12 examples
    without labels and 4 with, have their proportion on every replica as a whole only.

    Args:
        batch: Tensors [examples, ...].
        how_many: Which of them.
        num_replicas: In all.
        few: Examples of each replica that are a few.
    """
    sizes = _sizes(batch)
    if how_many == "all" or len(sizes) > 1:
        return batch
    most = {"one": 1, "few": few, "most": sys.maxsize}[how_many]
    number = min(most * num_replicas, *sizes)
    if number > num_replicas and number % num_replicas == 0:
        number -= 1
    return tf.nest.map_structure(
        lambda leaf: batches.rows(leaf, 0, number) if batches.has_first_axis(leaf) else leaf,
        batch,
    )


def _sizes(batch: Any) -> set[int]:
    leaves = filter(batches.has_first_axis, tf.nest.flatten(batch))
    return {batches.num_examples(leaf) for leaf in leaves}


def twin_of(batch: Any) -> Any:
    """Returns a batch whose inputs differ in their last bits, where they are floats.

    Not labels and weights, which may be inputs, too: what is compared with a whole number stays.
    """

    def touch(leaf: Any) -> Any:
        if not tf.is_tensor(leaf) or leaf.dtype not in (tf.float32, tf.float64):
            return tf.identity(leaf) if tf.is_tensor(leaf) else leaf  # A batch of its own.
        is_exact = tf.equal(leaf, tf.round(leaf))
        if tf.reduce_all(is_exact) and tf.size(tf.unique(tf.reshape(leaf, [-1])).y) > _CLASSES:
            is_exact = False  # Pixels.
        return tf.where(is_exact, leaf, leaf * (1.0 + tolerances.LAST_BITS))

    def touch_all(data: Any) -> Any:  # The parts of ragged and sparse tensors.
        return tf.nest.map_structure(touch, data, expand_composites=True)

    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):  # Anchors, positives, ...
        return touch_all(batch)
    x, *others = batch
    leaves = tf.nest.flatten((touch_all(x), *others))
    return tf.nest.pack_sequence_as(batch, leaves)


def move_weights(model: keras.Model, fraction: float, seed: int = 0) -> None:
    """Moves this replica's copies of the trained weights; called in replica context, eagerly.

    Args:
        model: A model of one of our strategies.
        fraction: Of each number, how far it is moved at most, along each axis.
        seed: Says which of them are moved how far.
    """
    strategy = model.distribute_strategy
    position = peers.replica_id() - peers.local_replicas(strategy)[0]
    for variable in model.trainable_variables:
        copy = strategy.experimental_local_results(variable.value)[position]
        copy.assign(_moved(tf.convert_to_tensor(copy), fraction, seed))


def perturbed_step(step: Callable, model: keras.Model, seed: int) -> Callable:
    """Returns a step that is made with other weights; what it assigns is for the caller."""

    def run(data: Any) -> Any:
        move_weights(model, tolerances.PERTURBATION, seed)
        return step(data)

    return run


def perturbed(structure: Any, seed: int) -> Any:
    """Returns tensors, such as predictions, of which each number is moved a little."""
    fraction = tolerances.PERTURBATION
    return tf.nest.map_structure(lambda each: _moved(each, fraction, seed), structure)


def _moved(tensor: Any, fraction: float, seed: int) -> Any:
    if tensor.dtype not in (tf.float32, tf.float64):
        return tensor
    sizes = tensor.shape.as_list()
    # A factor for each axis: one for each number would need as much memory as a large weight.
    for axis, size in enumerate(sizes or [1]):
        waves = np.cos((0.7 + seed + axis) * np.arange(1, 1 + size))
        shape = [size if each == axis else 1 for each in range(len(sizes))]
        tensor = tensor * tf.constant(1 + fraction * waves.reshape(shape), tensor.dtype)
    return tensor


def in_float32_first(model: keras.Model, run: Callable[[], _T]) -> _T:
    """Returns what a trial gives in float32; as the model computes where that fails.

    What 16 bits make of a sum over the pixels of a batch is another number for half of it, by more
    than most programs that mean something else differ by. With float32 a difference is one of the
    program.

    Args:
        model: A model of any dtype policy.
        run: Called once, or once more where a program asks for the 16 bits itself.
    """
    if not _mixed_layers(model):
        return run()
    try:
        with _in_float32(model):
            return run()
    except Exception:  # The program may raise anything in float32; it is tried as it computes.  # noqa: BLE001
        return run()


def _mixed_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers that keep float32 variables, and compute in 16 bits."""
    return [
        layer
        for layer in keras_layers.layers_of(model)
        if layer.dtype_policy.name in ("mixed_float16", "mixed_bfloat16")
    ]


@contextlib.contextmanager
def _in_float32(model: keras.Model) -> Generator[None]:
    layers = _mixed_layers(model)
    policies = [layer.dtype_policy for layer in layers]
    for layer in layers:
        layer.dtype_policy = "float32"
    try:
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy
