"""Tells which of Keras' own layers and operations may look at several examples of a batch.

A net of Keras' parts alone treats each example by itself, but for what is told to work along the
first axis, as `Softmax(axis=0)`, or to mix it with others, as a `reshape`. Static shapes and axes
tell. What they leave open counts as looking: the check before the first step then finds out.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

# Layers and operations keep here the axes that they work along.
_AXES = ("axis", "axes", "_attention_axes")
# With two axes, [examples, features], they attend to the other examples.
_ATTENTION = (keras.layers.Attention, keras.layers.AdditiveAttention)
# While they train they mix each example with another one, drawn at random.
_PAIRING = (keras.layers.MixUp, keras.layers.CutMix)
# These take each number by itself, or those at the same place of several tensors.
_ELEMENTWISE = (
    "Abs Absolute Add Arctan Arctan2 Cast Ceil Celu Clip ConvertToTensor Cos Cosh Divide "
    "DivideNoNan Elu Equal Erf Exp Expm1 Floor FloorDivide Gelu Greater GreaterEqual HardSigmoid "
    "HardSilu HardTanh Isfinite Isinf Isnan LeakyRelu Less LessEqual Log Log10 Log1p Log2 "
    "LogSigmoid Logaddexp LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Multiply "
    "NanToNum Negative NotEqual OnesLike Power Reciprocal Relu Relu6 Round Rsqrt SaturateCast Selu "
    "Sigmoid Sign Silu Sin Sinh Softplus Softsign Sqrt Square StopGradient Subtract Tan Tanh "
    "TanhShrink Threshold TrueDivide Where ZerosLike"
)
# These work along the axes that they are given, and keep the others apart.
_ALONG_AXES = (
    "All Amax Amin Any Argmax Argmin Concatenate CountNonzero Cumprod Cumsum ExpandDims Flip Glu "
    "LogSoftmax Logsumexp Max Mean Min Moments Norm Normalize OneHot Prod Repeat Roll Softmax Sort "
    "Split Squeeze Stack Std Sum TakeAlongAxis Unstack Var"
)


def may_mix_examples(layer: keras.layers.Layer) -> bool:
    """Whether a layer of Keras' may compute what it gives for an example from others, too.

    Args:
        layer: A layer, or a functional model with what stands between its layers.
    """
    return _layer_may_mix(layer) or any(
        _node_may_mix(node)
        for operation in getattr(layer, "operations", ())
        if not isinstance(operation, keras.Layer)
        for node in operation._inbound_nodes
    )


def _layer_may_mix(layer: keras.Layer) -> bool:
    if isinstance(layer, keras.layers.BatchNormalization):  # See `batch_statistics`.
        return False
    if isinstance(layer, _PAIRING):
        return True
    nodes = [node for node in layer._inbound_nodes if not node.is_input]
    if not nodes:  # Inside of another one, or not built.
        return _has_first_axis(layer, None)
    return any(
        _has_first_axis(layer, _rank_of(node))
        or not _begin_alike([node.input_tensors[0], *node.output_tensors])
        or (isinstance(layer, _ATTENTION) and len(node.input_tensors[0].shape) < 3)
        for node in nodes
    )


def _has_first_axis(operation: Any, rank: int | None) -> bool:
    """Whether the first axis is one of those that an operation works along."""
    given = [getattr(operation, name) for name in _AXES if hasattr(operation, name)]
    return any(_is_first(axis, rank) for axis in keras.tree.flatten(given))


def _is_first(axis: Any, rank: int | None) -> bool:
    if not isinstance(axis, int | np.integer):  # None stands for all, or for what the layer finds.
        return True
    if rank is None:
        return axis == 0 or axis < -1
    return axis in (0, -rank)


def _rank_of(node: Any) -> int:
    # An axis that is new or gone counts from the end of the longer shape.
    return max(len(each.shape) for each in (*node.input_tensors, *node.output_tensors))


def _begin_alike(tensors: Sequence) -> bool:
    """Whether tensors have a first axis, of the same length as far as that is known."""
    return all(each.shape for each in tensors) and len({each.shape[0] for each in tensors}) == 1


def _node_may_mix(node: Any) -> bool:
    """Whether an operation may mix examples where those of its inputs are apart."""
    operation, inputs = node.operation, node.input_tensors
    name = type(operation).__name__
    if not type(operation).__module__.startswith("keras.src."):  # One of the user's.
        return True
    if not _begin_alike([*inputs, *node.output_tensors]):
        return True
    if len({len(each.shape) for each in inputs}) > 1:  # The axis of one meets another's second.
        return True
    if name == "GetItem":
        return not _takes_all_examples(*node.arguments.args, **node.arguments.kwargs)
    if name == "Reshape":
        return _size_of_example(inputs[0]) != _size_of_example(node.output_tensors[0])
    if name == "Transpose":
        return not operation.axes or operation.axes[0] != 0
    if name == "Matmul":  # By a matrix that is no tensor of the net, or of matrices by matrices.
        return len(inputs) > 1 and len(inputs[0].shape) < 3
    if name in _ALONG_AXES.split():
        return _has_first_axis(operation, _rank_of(node))
    return name not in _ELEMENTWISE.split()


def _takes_all_examples(x: Any, key: Any) -> bool:
    first, *others = key if isinstance(key, tuple | list) else [key]
    if first is Ellipsis:
        return sum(each is not None for each in others) < len(x.shape)
    return isinstance(first, slice) and first == slice(None)


def _size_of_example(tensor: Any) -> float:
    """Returns how many numbers an example has; NaN, which equals nothing, where it is not known."""
    sizes = tensor.shape[1:]
    return math.nan if None in sizes else math.prod(sizes)
