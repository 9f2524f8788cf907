"""Finds batches whose tensors do not have the same number of examples.

Each tensor of a batch is divided along its first axis. Where that does not count examples, as in a
batch of graphs with one row for each node, rows that belong together part. Keras' own steps do not
say what belongs together, so that this is a warning, and the reason of an error that follows. A
step of the user's own may take two batches, with labels and without: a warning where parts are
uneven.
"""

from typing import Any

import keras
import tensorflow as tf

from kerasdist.support.users_line import warn
from kerasdist.training.data import batches
from kerasdist.training.hooks import divided_values


class FirstAxes:
    """The lengths of the first axes in the first batch, which a trace may not know.

    Args:
        is_of_original_step: Whether the batch is for one of Keras' own steps.
    """

    def __init__(self, *, is_of_original_step: bool = True):
        self._is_of_original_step = is_of_original_step
        with tf.device("CPU:0"):
            empty = tf.zeros([0], tf.int32)
            self._noted: Any = tf.Variable(empty, shape=[None], trainable=False)
        self._known: list[int] = []
        self._seen: list[int] = []
        self._names: list[str] = []
        self._num_parts = 1

    def restart(self) -> None:
        """Looks at the first batch again."""
        self._noted.assign([])
        self._seen = []

    def see(self, batch: Any, num_parts: int) -> None:
        """Notes the lengths in a first batch that is there before the trace, which may fail.

        Args:
            batch: One of tensors that have their values.
            num_parts: How many parts it is divided into.
        """
        leaves = _leaves_of(batch)
        self._seen = [batches.num_examples(leaf) for leaf in leaves.values()]
        self._names, self._num_parts = list(leaves), num_parts

    def note(self, batch: Any, num_parts: int, *, is_first: tf.Tensor) -> list:
        """Notes the lengths in the first batch.

        Args:
            batch: One of tensors that the step is to have, or a distributed one.
            num_parts: How many parts it is divided into.
            is_first: bool scalar; later batches are not looked at.

        Returns:
            What must run with the step, if anything.
        """
        leaves = _leaves_of(batch)
        if num_parts == 1 or len(leaves) < 2 or divided_values.is_distributed(batch):
            return []
        sizes = [batches.num_examples(leaf) for leaf in leaves.values()]
        self._names, self._num_parts = list(leaves), num_parts
        self._known = [size for size in sizes if isinstance(size, int)]
        if len(self._known) == len(sizes):
            return []
        self._known = []

        def note():
            with tf.control_dependencies([self._noted.assign(sizes)]):
                return tf.constant(True)

        return [tf.cond(is_first, note, lambda: False)]

    def describe(self) -> str | None:
        """Returns in words how the lengths differ; None where they do not, or are not known."""
        sizes = self._known or self._noted.numpy().tolist() or self._seen
        # One row goes to all replicas as it is. The first tensor says how many examples there are.
        if not sizes or set(sizes) <= {sizes[0], 1}:
            return None
        is_even = all(size == 1 or size % self._num_parts == 0 for size in sizes)
        if not self._is_of_original_step and is_even:
            return None
        told = ", ".join(f"{name} {size}" for name, size in zip(self._names, sizes, strict=True))
        divided = (
            f"The tensors of a batch differ in the length of their first axis: {told}. Each is "
            f"divided into {self._num_parts} parts along it, one for each replica"
        )
        if not self._is_of_original_step:
            return (
                f"{divided}: rows that belong together may come to different replicas, and a mean "
                f"over uneven parts counts as if these had the lengths of those of {self._names[0]}"
                f". Give lengths that are multiples of {self._num_parts}, or use "
                "`kerasdist.global_mean` in the step."
            )
        return (
            f"{divided}, as if it counted examples; rows that belong together, such as the nodes "
            "of a graph and its label, may come to different replicas. Give tensors with a row for "
            "each example, ragged or padded ones, and join them inside the model; or train on one "
            "device."
        )

    def warn(self) -> None:
        """Warns where the lengths differ."""
        if text := self.describe():
            warn(text)


def _leaves_of(batch: Any) -> dict:
    """Returns the tensors of a batch that have a first axis, by their names in words of Keras."""
    parts = batch if isinstance(batch, tuple | list) and len(batch) <= 3 else (batch,)
    names = ("x", "y", "sample_weight")
    leaves = {
        name + "".join(f"[{key!r}]" for key in path): leaf
        for name, part in zip(names, parts, strict=False)
        for path, leaf in keras.tree.flatten_with_path(part)
    }
    return {name: leaf for name, leaf in leaves.items() if batches.has_first_axis(leaf)}
