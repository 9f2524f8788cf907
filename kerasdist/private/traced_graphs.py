"""Finds the functions that a traced graph calls; see `replica/graph_facts`.

tests/private/test_traced_graphs.py fails when one of these names moves. Written against TensorFlow
2.20 and 2.21.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

_READ_ONLY_INPUTS = auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR


def called_graph(operation: tf.Operation) -> tf.Graph | None:
    """Returns the graph of the function that an operation calls; None if it calls none.

    An operation has its function by name alone, and a graph keeps what it calls to itself.
    """
    if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    graph: Any = operation.graph
    return getattr(graph._functions.get(operation.get_attr("f").name), "graph", None)


def is_being_vectorized() -> bool:
    """Whether this is traced for `tf.vectorized_map` or `tape.jacobian`, in the graph around it."""
    scopes = tf.get_current_name_scope().split("/")
    return any(scope.startswith("loop_body") for scope in scopes)


def only_reads_inside(operation: tf.Operation, handle: tf.Tensor) -> bool:
    """Whether an operation calls functions, and these only read the variable of a handle.

    Such operations keep a list of what is only read, by which automatic control dependencies order
    them.
    """
    if _READ_ONLY_INPUTS not in operation.node_def.attr:
        return False
    positions = {place for place, each in enumerate(operation.inputs) if each is handle}
    return positions <= set(operation.get_attr(_READ_ONLY_INPUTS))
