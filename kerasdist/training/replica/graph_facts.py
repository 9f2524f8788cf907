"""Reads traced graphs: what reads or sets a variable, and what is computed from what.

Nothing in a program says whether it adds to a variable or replaces it, or whether it looks at the
batch meanwhile; the types of its operations do.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import traced_graphs

# TensorFlow calls these stateful, too, but they only read a variable.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
# Operations that draw from a state of their own have this attribute.
_DRAWS = "seed2"


def key_of(tensor: tf.Tensor) -> tuple[int, str]:
    """Returns what tells a tensor of a graph from all others."""
    return id(tensor.graph), tensor.name


def symbolic_in(structure: Any) -> list[tf.Tensor]:
    """Returns the tensors of graphs in a structure."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and tf.is_symbolic_tensor(leaf)]


def upstream(
    tensors: Iterable[tf.Tensor], *, known: Collection[tuple[int, str]] = ()
) -> Iterator[tf.Tensor]:
    """Yields tensors and all that they are computed from, each once, also outside of a condition.

    Args:
        tensors: Of a graph.
        known: Keys of tensors that are left out, and what these alone are computed from.
    """
    seen, rest = set(known), list(tensors)
    while rest:
        tensor = rest.pop()
        key = key_of(tensor)
        if key not in seen:
            seen.add(key)
            yield tensor
            rest.extend([*tensor.op.inputs, *filter(tf.is_symbolic_tensor, outer_of(tensor))])


def outer_of(tensor: tf.Tensor) -> list:
    """Returns what the argument of a condition, loop or function stands for in the graph around."""
    if tensor.op.type != "Placeholder":
        return []
    graph: Any = tensor.graph
    return [outer for outer, inner in graph.captures if inner is tensor]


def handles_of(variables: Iterable[Any], of_graph: Any = None) -> list[tf.Tensor | None]:
    """Returns the handles by which a graph knows variables; None for those that it does not.

    Args:
        variables: TensorFlow's.
        of_graph: None for the one that is traced.
    """
    graph: Any = of_graph or tf.compat.v1.get_default_graph()
    captured = {id(outer): inner for outer, inner in graph.captures}
    handles = [captured.get(id(each.handle), each.handle) for each in variables]
    return [
        each if tf.is_symbolic_tensor(each) and each.graph is graph else None for each in handles
    ]


def uses_of(variable: Any) -> list[tf.Operation]:
    """Returns what uses a variable so far in the function that is traced.

    Automatic control dependencies let whatever changes the variable wait for these.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    return graph.capture(variable.handle).consumers()


def num_uses(tensor: tf.Tensor) -> int:
    """Returns how many operations take a tensor of a graph so far."""
    return len(tensor.consumers())


def is_read(operation: tf.Operation) -> bool:
    """Whether an operation only reads a variable."""
    return operation.type in _READS


def writes_of(handle: tf.Tensor) -> list[tf.Operation]:
    """Returns what may set a variable, among it calls of functions that take its handle."""
    return [user for user in handle.consumers() if not is_read(user)]


def inputs_beside(handle: tf.Tensor) -> list[tf.Tensor]:
    """Returns what operations take together with a variable, also inside of what XLA compiles.

    Args:
        handle: That of the variable, in the graph of these operations.
    """
    found: list[tf.Tensor] = []
    for user in handle.consumers():
        graph: Any = traced_graphs.called_graph(user)
        # What a function gets as an argument is not known to be that of its caller.
        if graph is None or len(graph.captures) < len(graph.inputs):
            found += [each for each in user.inputs if each is not handle]
            continue
        for outer, inner in zip(user.inputs, graph.inputs, strict=True):
            found += inputs_beside(inner) if outer is handle else []
    return found


def is_set(variable: Any) -> bool:
    """Whether what is traced may set a variable: of the function itself, or captured by it."""
    (handle,) = handles_of([variable])
    return handle is not None and not _only_reads(handle)


def _only_reads(handle: tf.Tensor) -> bool:
    return all(traced_graphs.only_reads_inside(each, handle) for each in writes_of(handle))


def only_read_in(graph: Any) -> list[tf.Variable]:
    """Returns the variables that a function reads and never sets, when it has been traced."""
    try:
        variables = graph.variables
    except AssertionError:  # One of them is there no longer.
        return []
    pairs = zip(variables, handles_of(variables, graph), strict=True)
    return [variable for variable, handle in pairs if handle is not None and _only_reads(handle)]


def addend_of(variable: Any, value: tf.Tensor) -> tf.Tensor | None:
    """Returns x where a value that is traced is `variable + x`; None where it is something else."""
    operation = _maker_of(value)
    if operation.type != "AddV2":
        return None
    reads = _reads_of(variable)
    first, second = operation.inputs
    is_first, is_second = (_maker_of(each) in reads for each in (first, second))
    if is_first == is_second:
        return None
    return second if is_first else first


def is_read_for(variable: Any, value: tf.Tensor) -> bool:
    """Whether a value that is traced is computed with what a variable was."""
    reads = _reads_of(variable)
    return any(tensor.op in reads for tensor in upstream([value]))


def is_random(tensor: tf.Tensor) -> bool:
    """Whether a tensor is random numbers."""
    return "Random" in tensor.op.type


def draws_from_state(operations: Iterable[tf.Operation]) -> bool:
    """Whether some operations draw from states of their own, as `tf.random.normal` does."""
    one_of_each_type = {each.type: each for each in operations}
    return any(_DRAWS in each.node_def.attr for each in one_of_each_type.values())


def has_state_of_draws(graph: tf.Graph) -> bool:
    """Whether a graph, or a function in it, draws from states of its own operations.

    In another graph the same operations begin with other numbers. Those of Keras draw from a
    variable.
    """
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    return any(_DRAWS in node.attr for nodes in (definition.node, *functions) for node in nodes)


def deciding(graph: Any) -> list[tf.Tensor]:
    """Returns what decides whether a branch of a condition runs.

    Args:
        graph: That of the branch, or any other one: of these nothing decides.
    """
    return [each.inputs[0] for each in graph.outer_graph.get_operations() if _calls(each, graph)]


def _calls(operation: tf.Operation, graph: Any) -> bool:
    names = ("then_branch", "else_branch") if operation.type in ("If", "StatelessIf") else ()
    return any(operation.get_attr(name).name == graph.name for name in names)


def _maker_of(tensor: tf.Tensor) -> tf.Operation:
    while tensor.op.type == "Identity":
        (tensor,) = tensor.op.inputs
    return tensor.op


def _reads_of(variable: Any) -> list[tf.Operation]:
    return [each for each in uses_of(variable) if each.type == "ReadVariableOp"]
