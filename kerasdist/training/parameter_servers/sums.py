"""Which variables a traced step only adds to, so that a worker may begin at 0 and add later.

A metric of the user's own may be a sum, as Keras' are, or a maximum, or the last value. Nothing in
a program says which; its graph does.
"""

from collections.abc import Container, Iterable
from typing import Any

import tensorflow as tf

from kerasdist.private import traced_graphs

_READS = ("ReadVariableOp", "VariableShape")
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
    handles = {id(each): _handle_in_graph(each) for each in variables}
    names = {handle.name for handle in handles.values() if handle is not None}
    needed: set[str] = set()
    for handle in handles.values():
        for write in () if handle is None else _writes(handle):
            if write not in but_for:
                needed |= _needed(write, handle, names)
    return [each for each in variables if getattr(handles[id(each)], "name", None) in needed]


def _handle_in_graph(variable):
    """Returns the handle by which the graph knows a variable; None where it does not."""
    graph: Any = tf.compat.v1.get_default_graph()
    captured = {id(outer): inner for outer, inner in graph.captures}
    handle = captured.get(id(variable.handle), variable.handle)
    return handle if tf.is_symbolic_tensor(handle) and handle.graph is graph else None


def _writes(handle) -> list:
    return [user for user in handle.consumers() if user.type not in _READS]


def _needed(write, handle, names: set[str]) -> set[str]:
    """Returns which variables must have their own value, for one operation that sets `handle`."""
    values = [each for each in write.inputs if each.dtype != tf.resource]
    if write.type == "AssignVariableOp":
        addends = _addends(values[0], handle)
    elif write.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        addends = values
    elif (inner := traced_graphs.called_graph(write)) is not None:
        return _needed_inside(write, inner, names) | _read(values, names)
    else:  # A condition, a loop, a scatter.
        addends = None
    if addends is None:
        given = {each.name for each in write.inputs if each.name in names}
        return given | _read(values, names)
    return _read(addends, names)


def _needed_inside(call, graph, names: set[str]) -> set[str]:
    """Returns the same for a call of a function, which has a graph of its own."""
    outside = {
        inner.name: outer.name
        for outer, inner in zip(call.inputs, graph.inputs, strict=True)
        if outer.name in names
    }
    handles = [inner for inner in graph.inputs if inner.name in outside]
    found = [
        _needed(write, handle, set(outside)) for handle in handles for write in _writes(handle)
    ]
    return {outside[name] for name in set().union(*found)}


def _addends(value, handle) -> list | None:
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


def _read(tensors: Iterable, names: set[str]) -> set[str]:
    """Returns which variables some tensors are computed with."""
    read, seen, rest = set(), set(), list(tensors)
    while rest:
        tensor = rest.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.name in names:
            read.add(tensor.name)
        rest.extend(tensor.op.inputs)
    return read
