"""Reads what the graph of a traced function does with its variables, and which functions it calls.

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


def uses_of(variable: Any) -> list[tf.Operation]:
    """Returns what uses a variable so far in the function that is traced.

    Automatic control dependencies let whatever changes the variable wait for these.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture(variable.handle).consumers()


def addend_of(variable: Any, value):
    """Returns x where a value that is traced is `variable + x`; None where it is something else."""
    operation = _maker_of(value)
    if operation.type != "AddV2":
        return None
    first, second = operation.inputs
    is_first, is_second = (_maker_of(each) in _reads_of(variable) for each in (first, second))
    if is_first == is_second:
        return None
    return second if is_first else first


def is_read_for(variable: Any, value) -> bool:
    """Whether a value that is traced is computed with what a variable was."""
    reads, seen, found = _reads_of(variable), set(), [value.op]
    while found:
        operation = found.pop()
        if operation in reads:
            return True
        if operation not in seen:
            seen.add(operation)
            found.extend(each.op for each in operation.inputs)
    return False


def _maker_of(tensor) -> tf.Operation:
    while tensor.op.type == "Identity":
        (tensor,) = tensor.op.inputs
    return tensor.op


def _reads_of(variable: Any) -> list[tf.Operation]:
    return [each for each in uses_of(variable) if each.type == "ReadVariableOp"]


def only_read_in(graph: Any) -> list:
    """Returns the variables that a function reads and never sets, when it has been traced.

    Operations that call further functions keep a list of what those only read, by which automatic
    control dependencies order them.
    """
    try:
        variables = graph.variables
    except AssertionError:  # One of them is there no longer.
        return []
    handles = {id(outer): inner for outer, inner in graph.captures}
    return [
        each
        for each in variables
        if (handle := handles.get(id(each.handle))) is not None
        and all(_only_reads(user, handle) for user in handle.consumers())
    ]


def _only_reads(operation: tf.Operation, handle) -> bool:
    if operation.type in ("ReadVariableOp", "VariableShape"):
        return True
    if _READ_ONLY_INPUTS not in operation.node_def.attr:
        return False
    positions = {place for place, each in enumerate(operation.inputs) if each is handle}
    return positions <= set(operation.get_attr(_READ_ONLY_INPUTS))
