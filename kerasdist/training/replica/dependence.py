"""Tell which variables a traced step sets by the examples of its replica, and which without.

A layer that keeps the mean of what it has seen does the one, a counter or a teacher whose weights
follow the model's the other. Nothing in a program says which; its graph does. Without a graph
`EagerOperations` say what is computed from the batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.replica import graph_facts


class Dependence:
    """Knows in the graph that is traced what depends on a replica's batch.

    Args:
        data: The batch, a structure of tensors.
        operations: The `EagerOperations` of a step without a graph, or None.
    """

    def __init__(self, data: Any, operations: Any = None):
        self._data, self._of_batch = data, _keys_of(data)
        self._of_all: set[tuple] = set()
        self._operations = operations
        if operations is not None:
            operations.begin_at(data)

    @property
    def num_examples(self) -> int:
        """The examples of the batch, without a graph."""
        return int(batches.num_examples(self._data))

    def end_at(self, tensors: Any) -> None:
        """Says of tensors that they are the same on all replicas: sums over these."""
        self._of_all |= _keys_of(tensors)
        if self._operations is not None:
            self._operations.end_at(tensors)

    def among(self, variables: list) -> list:
        """Returns those variables to which something is assigned that depends on the batch.

        None in eager steps, which keep no graph.
        """
        if tf.executing_eagerly():
            return []
        pairs = zip(variables, graph_facts.handles_of(variables), strict=True)
        return [variable for variable, handle in pairs if self._is_set_by_batch(handle)]

    def is_in(self, structure: Any) -> bool:
        """Whether a structure has a tensor, of the graph that is traced, that does."""
        return self._any(graph_facts.symbolic_in(structure), lambda tensor: False)

    def is_common(self, structure: Any, *, may_read: bool) -> bool:
        """Whether tensors are computed from sums over the replicas and constants alone.

        Args:
            structure: The tensors.
            may_read: Whether variables count as the same on all replicas, too.
        """
        if tf.executing_eagerly():
            return False
        is_found = functools.partial(_is_of_one_replica, may_read=may_read)
        return not self._any(graph_facts.symbolic_in(structure), is_found)

    def is_common_by_now(self, structure: Any) -> bool:
        """Whether tensors are so, or computed from variables that the batch has not set so far."""
        if tf.executing_eagerly():
            leaves = tf.nest.flatten(structure, expand_composites=True)
            known = self._operations
            return known is not None and not any(map(known.is_of_batch, leaves))
        if not self.is_common(structure, may_read=True):
            return False
        return not self._any(graph_facts.symbolic_in(structure), self._reads_what_batch_has_set)

    def has_own_condition(self, graph: Any, outermost: tf.Graph) -> bool:
        """Whether each replica decides for itself if what is traced in `graph` happens.

        Args:
            graph: Of a condition inside of `outermost`, which is the graph of the step.
            outermost: See `graph`.
        """
        while graph is not outermost:
            if self._any(graph_facts.deciding(graph), graph_facts.is_random):
                return True
            graph = graph.outer_graph
        return False

    def _reads_what_batch_has_set(self, tensor: tf.Tensor) -> bool:
        operation = tensor.op
        return graph_facts.is_read(operation) and self._is_set_by_batch(operation.inputs[0])

    def _is_set_by_batch(self, handle: Any) -> bool:
        if handle is None:  # The step has nothing to do with it.
            return False
        return self._any(graph_facts.inputs_beside(handle), lambda tensor: False)

    def _any(self, tensors: list, is_found: Callable) -> bool:
        """Whether some tensors are computed with something of the batch, or with what is found."""
        return any(
            graph_facts.key_of(tensor) in self._of_batch or is_found(tensor)
            for tensor in graph_facts.upstream(tensors, known=self._of_all)
        )


def _is_of_one_replica(tensor: tf.Tensor, *, may_read: bool) -> bool:
    """Whether an operation may give each replica something of its own, such as random numbers."""
    operation = tensor.op
    is_allowed = may_read and graph_facts.is_read(operation)
    # Such as the variable of a loop.
    is_argument = operation.type == "Placeholder" and not graph_facts.outer_of(tensor)
    is_state = operation.op_def.is_stateful and not is_allowed
    return is_argument or is_state or graph_facts.is_random(tensor)


def _keys_of(structure: Any) -> set[tuple]:
    return set(map(graph_facts.key_of, graph_facts.symbolic_in(structure)))
