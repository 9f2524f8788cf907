"""Follow what a step computes without a graph: which tensors are of its batch, what gave others.

An operation that runs at once leaves nothing behind, so each is looked at as it runs. What leaves
TensorFlow is lost: rows that numpy computes from the batch look like those that a program has
written down.
"""

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from kerasdist.private import call_adapter

_ORIGIN = "_kerasdist_origin"


class EagerOperation(NamedTuple):
    """Stands for a `tf.Operation`: its type, such as "Range", and its tensors."""

    type: str
    inputs: tuple


class _Origin(NamedTuple):
    owner: "EagerOperations"
    is_of_batch: bool
    operation: EagerOperation | None = None


class EagerOperations:
    """Looks at the operations of one step, on all replicas of this worker."""

    def watched(self) -> contextlib.AbstractContextManager:
        """Returns a context that looks at operations, also in the threads that start in it."""
        return call_adapter.operations_told(self._note)

    def begin_at(self, structure: Any) -> None:
        """Says of tensors that they are of the batch of one replica."""
        self._mark(structure, is_of_batch=True)

    def end_at(self, structure: Any) -> None:
        """Says of tensors that they are the same on all replicas."""
        self._mark(structure, is_of_batch=False)

    def is_of_batch(self, tensor: Any) -> bool:
        """Whether a tensor is computed from a batch, or at random: each replica has its own."""
        origin = self._origin_of(tensor)
        return origin is not None and origin.is_of_batch

    def _mark(self, structure: Any, *, is_of_batch: bool) -> None:
        for leaf in tf.nest.flatten(structure, expand_composites=True):
            if isinstance(leaf, tf.Tensor):
                setattr(leaf, _ORIGIN, _Origin(self, is_of_batch))

    def _origin_of(self, tensor: Any) -> _Origin | None:
        origin = _origin_of(tensor)
        return origin if origin is not None and origin.owner is self else None

    def _note(self, kind: str, inputs: tuple, outputs: tuple) -> None:
        is_of_batch = "Random" in kind or any(map(self.is_of_batch, inputs))
        if not outputs and inputs and inputs[0].dtype == tf.resource:
            outputs = inputs[:1]  # A variable that is set.
        for output in outputs:
            # What gave a large tensor would keep others in memory; rows are integers.
            is_small = output.dtype.is_integer or output.dtype.is_bool
            operation = EagerOperation(kind, inputs) if is_small else None
            setattr(output, _ORIGIN, _Origin(self, is_of_batch, operation))


def operation_of(tensor: Any) -> Any:
    """Returns what gave a tensor of integers: of its graph, or as it was looked at, or None."""
    if tf.is_symbolic_tensor(tensor):
        return tensor.op
    origin = _origin_of(tensor)
    return origin.operation if origin else None


def _origin_of(tensor: Any) -> _Origin | None:
    return getattr(tensor, _ORIGIN, None)
