"""Lets an update compute with each gradient where it is, on the server of its variable.

TensorFlow takes what says nothing of a device to where the function runs: to the first server, and
back again. Clipping by a norm of all gradients then moves all of them, where one number would do.

    with placement.beside_inputs():
        clipped = gradient * factor        # Runs on the device of the gradient.
"""

import contextlib
import math
from collections.abc import Generator

import tensorflow as tf

from kerasdist.training.replica import graph_facts

# Of an axis whose length is not known, as the rows of a gradient.
_UNKNOWN = 2**10
_OF_HANDLES = (tf.resource, tf.variant)


@contextlib.contextmanager
def beside_inputs() -> Generator[None]:
    """Lets what is traced inside run where the largest of its inputs is, if it does not say where.

    What has the handle of a variable runs where this is.
    """
    graph = tf.compat.v1.get_default_graph()
    with graph.device(_device_of):
        yield


def _device_of(operation: tf.Operation) -> str:
    inputs = list(operation.inputs)
    is_of_variable = any(tensor.dtype in _OF_HANDLES for tensor in inputs)
    if _names_task(operation.device) or is_of_variable:
        return operation.device
    devices = [(_size_of(tensor), _place_of(tensor)) for tensor in inputs]
    _, device = max(devices, key=lambda pair: pair[0], default=(0, ""))
    return device or operation.device


def _names_task(device: str) -> bool:
    return bool(device) and tf.DeviceSpec.from_string(device).job is not None


def _place_of(tensor: tf.Tensor) -> str:
    """Returns where a tensor is; also in the branch of a condition, that it comes into."""
    while (outer := graph_facts.outer_of(tensor)) and tf.is_symbolic_tensor(outer[0]):
        (tensor,) = outer
    return tensor.device


def _size_of(tensor: tf.Tensor) -> int:
    if tensor.shape.rank is None:
        return _UNKNOWN
    return math.prod(_UNKNOWN if size is None else size for size in tensor.shape)
