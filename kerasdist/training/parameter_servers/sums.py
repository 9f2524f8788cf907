"""Finds variables that a traced step only adds to: a worker may begin at 0, and add later.

A custom metric may be a sum, as Keras' are, or a maximum, or the last value. Nothing in
a program says which; its graph does.
"""

from collections.abc import Container, Iterable
from typing import Any

import tensorflow as tf

from kerasdist.private import traced_graphs
from kerasdist.training.replica import graph_facts
from kerasdist.training.replica.graph_facts import key_of

Key = tuple[int, str]
_PASSED = ("Identity", "Cast")
_ADDITIONS = ("Add", "AddV2", "AddN")


def no_sums(variables: list, *, but_for: Container[tf.Operation] = ()) -> list:
    """Returns those of some variables that the graph which is traced does not only add to.

    Args:
        variables: Of TensorFlow, which the graph holds or captures.
        but_for: Operations that may set them otherwise.

    Returns:
        Those to which it assigns something else than themselves and what is known without them, and
        those that it reads for another one: both need the value that the variable really has.
    """
    pairs = zip(variables, graph_facts.handles_of(variables), strict=True)
    known = [(variable, handle) for variable, handle in pairs if handle is not None]
    keys = {key_of(handle) for _, handle in known}
    needed: set[Key] = set()
    for _, handle in known:
        for write in graph_facts.writes_of(handle):
            if write not in but_for:
                needed |= _needed(write, handle, keys)
    return [variable for variable, handle in known if key_of(handle) in needed]


def _needed(write: tf.Operation, handle: tf.Tensor, keys: set[Key]) -> set[Key]:
    """Returns which variables must have their own value, for one operation that sets `handle`."""
    values = [each for each in write.inputs if each.dtype != tf.resource]
    if write.type == "AssignVariableOp":
        addends = _addends(values[0], handle)
    elif write.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        addends = values
    elif (inner := traced_graphs.called_graph(write)) is not None:
        return _needed_inside(write, inner, keys) | _read(values, keys)
    else:  # A condition, a loop, a scatter.
        addends = None
    if addends is None:
        return (keys & set(map(key_of, write.inputs))) | _read(values, keys)
    return _read(addends, keys)


def _needed_inside(call: tf.Operation, graph: Any, keys: set[Key]) -> set[Key]:
    """Returns the same for a call of a function, which has a graph of its own."""
    outside = {
        key_of(inner): key_of(outer)
        for outer, inner in zip(call.inputs, graph.inputs, strict=True)
        if key_of(outer) in keys
    }
    found = [
        _needed(write, handle, set(outside))
        for handle in graph.inputs
        if key_of(handle) in outside
        for write in graph_facts.writes_of(handle)
    ]
    return {outside[key] for key in set().union(*found)}


def _addends(value: tf.Tensor, handle: tf.Tensor) -> list | None:
    """Returns what a value adds to its variable; None if it is no such sum."""
    operation = value.op
    if operation.type in _PASSED:
        return _addends(operation.inputs[0], handle)
    if operation.type == "ReadVariableOp":
        return [] if operation.inputs[0] is handle else None
    terms = list(operation.inputs) if operation.type in (*_ADDITIONS, "Sub") else []
    for index, term in enumerate(terms[:1] if operation.type == "Sub" else terms):
        addends = _addends(term, handle)
        if addends is not None:
            return [*addends, *terms[:index], *terms[index + 1 :]]
    return None


def _read(tensors: Iterable[tf.Tensor], keys: set[Key]) -> set[Key]:
    """Returns which variables some tensors are computed with."""
    return keys & {key_of(tensor) for tensor in graph_facts.upstream(tensors)}
