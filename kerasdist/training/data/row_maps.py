"""Finds out whether a `map` of whole batches treats each row of them alone.

Then a worker may call it with its own rows. The graph of the function says so where it is made of
operations whose way with the first axis is known, such as arithmetic; of all others nobody knows.
"""

from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, traced_graphs

# Numbers of one shape, or of one that is repeated to the shape of the others.
_OF_NUMBERS = {
    *("Abs", "Add", "AddV2", "Cast", "ClipByValue", "Cos", "Div", "DivNoNan", "Equal", "Erf"),
    *("Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Identity"),
    *("IsFinite", "IsNan", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot"),
    *("LogicalOr", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "NotEqual", "Pow", "RealDiv"),
    *("Reciprocal", "Relu", "Round", "Rsqrt", "SelectV2", "Sigmoid", "Sign", "Sin", "Sqrt"),
    *("Square", "SquaredDifference", "Sub", "Tanh", "TruncateDiv"),
}
# With axes for the second input.
_ALONG_AXES = {"All", "Any", "ArgMax", "ArgMin", "ExpandDims", "Max", "Mean", "Min", "Prod", "Sum"}
_OF_IMAGES = {"ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"}


def treats_rows_alone(mapped: tf.data.Dataset, num_arguments: int) -> bool:
    """Whether each row of what a `map` gives is made of the same row of what it is given.

    Args:
        mapped: What the `map` has made, of batches of which each part has a row for each example.
        num_arguments: How many parts they have.
    """
    graph = dataset_adapter.graph_of(mapped)
    rows = {tensor.name for tensor in graph.inputs[:num_arguments]}
    return all(tensor.name in rows for tensor in _outputs_of(graph, rows))


def _outputs_of(graph: Any, rows: set[str]) -> list:
    """Adds the tensors with a row for each example to their names; returns the graph's outputs."""
    others = {tensor.name for tensor in graph.inputs} - rows  # The same for all examples.
    for operation in graph.get_operations():
        inputs = [tensor.name for tensor in operation.inputs]
        if operation.type == "Placeholder":
            continue
        if others.issuperset(inputs):
            others.update(tensor.name for tensor in operation.outputs)
        elif not operation.outputs:
            rows.clear()  # It checks or prints the batch, of which it would see some rows.
            break
        elif all(name in rows or name in others for name in inputs):
            made = _rows_of(operation, [name in rows for name in inputs])
            rows.update(tensor.name for tensor in made)
    return graph.outputs


def _rows_of(operation: Any, are_rows: list[bool]) -> list:
    """Returns the outputs with a row for each example, of an operation with such inputs."""
    called = traced_graphs.called_graph(operation)
    if called is not None:
        return _rows_of_call(operation, called, are_rows)
    keeps = any(
        operation.type in kinds and rule(operation, are_rows)
        for kinds, rule in (
            (_OF_NUMBERS, _repeats_no_rows),
            (_ALONG_AXES, _leaves_first_axis),
            ({"Squeeze"}, _squeezes_others),
            ({"OneHot"}, lambda each, are: are[0] and each.get_attr("axis") != 0),
            ({"GatherV2"}, lambda each, are: are[:2] == [False, True] and _takes_along_first(each)),
            (_OF_IMAGES, lambda each, are: are == [True, False]),
        )
    )
    return operation.outputs if keeps else []


def _rows_of_call(operation: Any, graph: Any, are_rows: list[bool]) -> list:
    rows = {each.name for each, is_row in zip(graph.inputs, are_rows, strict=True) if is_row}
    outputs = _outputs_of(graph, rows)
    pairs = zip(operation.outputs, outputs, strict=True)
    return [outside for outside, inside in pairs if inside.name in rows]


def _repeats_no_rows(operation: Any, are_rows: list[bool]) -> bool:
    shapes = list(zip([each.shape for each in operation.inputs], are_rows, strict=True))
    ranks = {shape.rank for shape, is_row in shapes if is_row}
    others = [shape for shape, is_row in shapes if not is_row]
    if len(ranks) > 1 or None in ranks:
        return False
    (rank,) = ranks
    return all(
        shape.rank is not None and (shape.rank < rank or (shape.rank == rank and shape[0] == 1))
        for shape in others
    )


def _leaves_first_axis(operation: Any, are_rows: list[bool]) -> bool:
    axes = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].shape.rank
    if are_rows != [True, False] or axes is None or rank is None:
        return False
    rank += operation.type == "ExpandDims"  # Counted in the axes that there are then.
    return all(axis % rank > 0 for axis in axes.reshape([-1]).tolist())


def _squeezes_others(operation: Any, are_rows: list[bool]) -> bool:
    axes, rank = operation.get_attr("squeeze_dims"), operation.inputs[0].shape.rank
    return bool(axes) and rank is not None and all(axis % rank > 0 for axis in axes)


def _takes_along_first(operation: Any) -> bool:
    axis = tf.get_static_value(operation.inputs[2])
    return axis is not None and int(axis) == 0 and operation.get_attr("batch_dims") == 0
