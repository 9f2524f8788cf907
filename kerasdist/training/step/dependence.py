"""Which variables a traced step sets by the examples of its replica, and which whatever these are.

A layer that keeps the mean of what it has seen does the one, a counter or a teacher whose weights
follow the model's the other. Nothing in a program says which; its graph does.
"""

from typing import Any

import tensorflow as tf


class Dependence:
    """Knows in the graph that is traced what depends on a replica's batch.

    Args:
        data: The batch, a structure of tensors.
    """

    def __init__(self, data):
        self._of_batch = _names_of(data)
        self._of_all: set[str] = set()

    def end_at(self, tensors) -> None:
        """Says of tensors that they are the same on all replicas: sums over these."""
        self._of_all |= _names_of(tensors)

    def among(self, variables: list) -> list:
        """Returns those variables to which something is assigned that depends on the batch.

        None in eager steps, which keep no graph.
        """
        if tf.executing_eagerly():
            return []
        graph: Any = tf.compat.v1.get_default_graph()
        handles = {id(outer): inner for outer, inner in graph.captures}
        return [each for each in variables if self._is_set_by_batch(handles.get(id(each.handle)))]

    def is_in(self, structure) -> bool:
        """Whether a structure has a tensor, of the graph that is traced, that does."""
        graph: Any = tf.compat.v1.get_default_graph()
        leaves = tf.nest.flatten(structure, expand_composites=True)
        symbolic = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        return self._depend([leaf for leaf in symbolic if getattr(leaf, "graph", None) is graph])

    def _is_set_by_batch(self, handle) -> bool:
        if handle is None:  # The step has nothing to do with it.
            return False
        users = handle.consumers()
        return self._depend([each for user in users for each in user.inputs if each is not handle])

    def _depend(self, tensors: list) -> bool:
        """Whether one of some tensors is computed with something of the batch."""
        seen: set[str] = set()
        while tensors:
            tensor = tensors.pop()
            if tensor.name in self._of_batch:
                return True
            if tensor.name not in seen and tensor.name not in self._of_all:
                tensors.extend(tensor.op.inputs)
            seen.add(tensor.name)
        return False


def _names_of(structure) -> set[str]:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return {leaf.name for leaf in leaves if tf.is_tensor(leaf) and tf.is_symbolic_tensor(leaf)}
