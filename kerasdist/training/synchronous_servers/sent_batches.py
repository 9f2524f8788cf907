"""Batches that the chief sends to whichever worker is to compute them.

That is data which only the chief can read, and what was lost with a worker. It waits on the first
parameter server, under its position, until it is in an update:

    sent.stage(position, batch)         # on the chief
    tensors = sent.read(position)       # on a worker
"""

from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.data import batches
from kerasdist.training.synchronous_servers import server_calls


class BatchForm:
    """Batches as lists of tensors.

    Args:
        element_spec: Of a batch.

    Attributes:
        specs: Of the tensors.
    """

    def __init__(self, element_spec: Any):
        # An Optional stands for None; see `batches.without_optionals`.
        self._element_spec = tf.nest.map_structure(
            lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, element_spec
        )
        self._parts = [
            [] if spec is None else tf.nest.flatten(spec, expand_composites=True)
            for spec in tf.nest.flatten(self._element_spec)
        ]
        self.specs = tuple(spec for part in self._parts for spec in part)

    def tensors_of(self, batch: Any) -> list[tf.Tensor]:
        """Returns the tensors of a batch."""
        leaves = tf.nest.flatten(batches.without_optionals(batch))
        return [
            tensor
            for leaf in leaves
            if leaf is not None
            for tensor in tf.nest.flatten(leaf, expand_composites=True)
        ]

    def batch_of(self, tensors: list[tf.Tensor]) -> Any:
        """Returns the batch that tensors are of, with the shapes that are known."""
        left = list(zip(tensors, self.specs, strict=True))
        leaves = []
        for spec, part in zip(tf.nest.flatten(self._element_spec), self._parts, strict=True):
            mine, left = left[: len(part)], left[len(part) :]
            for tensor, tensor_spec in mine:
                tensor.set_shape(tensor_spec.shape)
            leaf = [tensor for tensor, _ in mine]
            if spec is None:
                leaves.append(None)
            else:
                leaves.append(tf.nest.pack_sequence_as(spec, leaf, expand_composites=True))
        return tf.nest.pack_sequence_as(self._element_spec, leaves)

    def nothing(self) -> list[tf.Tensor]:
        """Returns tensors that stand for no batch."""
        return [tf.zeros([size or 0 for size in each.shape], each.dtype) for each in self.specs]


class SentBatches:
    """Batches on a parameter server.

    Args:
        form: Of each batch.
        device: Of the parameter server.
    """

    def __init__(self, form: BatchForm, device: str):
        self._form, self._device = form, device
        self._arguments = {
            "dtypes": [spec.dtype for spec in form.specs],
            "shared_name": variable_adapter.unique_name(),
        }
        self._indices = list(range(len(form.specs)))
        self._positions: set[int] = set()

    def stage(self, position: int, batch: Any) -> None:
        """Sends a batch, if it is not there."""
        if position in self._positions:
            return
        self._positions.add(position)
        tensors = self._form.tensors_of(batches.as_tensors(batch))
        with tf.device(self._device):
            tf.raw_ops.MapStage(
                key=tf.constant(position, tf.int64),
                indices=self._indices,
                values=tensors,
                **self._arguments,
            )

    def has(self, position: int) -> bool:
        """Whether a batch is there."""
        return position in self._positions

    def forget(self, positions: list[int]) -> None:
        """Forgets those of these batches that are there."""
        for position in self._positions.intersection(positions):
            self._positions.remove(position)
            with tf.device(self._device):
                tf.raw_ops.MapUnstage(
                    key=tf.constant(position, tf.int64), indices=self._indices, **self._arguments
                )

    def clear(self) -> None:
        """Forgets all of them."""
        self._positions.clear()
        with tf.device(self._device):
            tf.raw_ops.MapClear(**self._arguments)

    def read(self, position: tf.Tensor) -> list[tf.Tensor]:
        """Returns the tensors of a batch that is there; traced for a worker."""
        return server_calls.call(self._device, self._peek, position)

    def _peek(self, position: tf.Tensor) -> list[tf.Tensor]:
        return tf.raw_ops.MapPeek(key=position, indices=self._indices, **self._arguments)
