"""Which variables a traced step sets by the examples of its replica, and which whatever these are.

A layer that keeps the mean of what it has seen does the one, a counter or a teacher whose weights
follow the model's the other. Nothing in a program says which; its graph does.
"""

from typing import Any

import tensorflow as tf


class Dependence:
    """Follows a replica's batch through the operations that are traced from now on.

    Args:
        data: The batch, a structure of tensors.
    """

    def __init__(self, data):
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._num_before = 0 if tf.executing_eagerly() else len(self._graph.get_operations())
        self._begin = _names_of(data)
        self._end: set[str] = set()

    def end_at(self, tensors) -> None:
        """Says of tensors that they are the same on all replicas: sums over these."""
        self._end |= _names_of(tensors)

    def among(self, variables: list) -> list:
        """Returns those variables to which something is assigned that depends on the batch.

        None in eager steps, which keep no graph.
        """
        if tf.executing_eagerly():
            return []
        reached = self._inputs_reached()
        places = {id(outer): inner.name for outer, inner in self._graph.captures}
        return [each for each in variables if places.get(id(each.handle)) in reached]

    def _inputs_reached(self) -> set[str]:
        """Returns the inputs of all operations that something of the batch goes into."""
        followed, reached = set(self._begin), set()
        for operation in self._graph.get_operations()[self._num_before :]:
            inputs = {tensor.name for tensor in operation.inputs}
            if not followed.isdisjoint(inputs):
                reached |= inputs
                followed |= {tensor.name for tensor in operation.outputs} - self._end
        return reached


def _names_of(structure) -> set[str]:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return {leaf.name for leaf in leaves if tf.is_tensor(leaf) and tf.is_symbolic_tensor(leaf)}
