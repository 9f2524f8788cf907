"""Sums and broadcasts over the replicas, and the gradients of what tapes do not record.

tests/private/test_collectives.py fails when one of these names moves. Written against TensorFlow
2.20 and 2.21.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import collective_ops

from kerasdist.private import names


def sum_over_replicas(tensors: list) -> list:
    """Returns tensors and IndexedSlices of one dtype summed over all replicas; no gradient.

    TensorFlow's public `all_reduce` also walks through the graph, of all replicas, for variables
    that a gradient might need.
    """
    extended = tf.distribute.get_strategy().extended
    # The user may have given some to the strategy of several workers.
    options = getattr(extended, "_communication_options", None)
    with record.stop_recording():
        return extended._replica_ctx_all_reduce(tf.distribute.ReduceOp.SUM, tensors, options)


def differentiable_sum(tensor: tf.Tensor, weigh: Callable | None = None):
    """Returns a tensor summed over all replicas; its gradient is a sum over them too.

    Args:
        tensor: Of the same shape on every replica.
        weigh: Called with (function, gradient), to weigh the replicas' gradients where `function`
            adds them up; None leaves them as they are.
    """

    def backward(gradient: tf.Tensor):
        return [weigh(differentiable_sum, gradient) if weigh else differentiable_sum(gradient)]

    with without_gradient():
        (summed,) = sum_over_replicas([tf.identity(tensor)])
    give_gradient([summed], [tensor], backward, name="SumOverReplicas")
    return summed


def without_gradient() -> contextlib.AbstractContextManager:
    """Returns a context in which no operation has a gradient; see `give_gradient`."""
    return record.stop_recording()


def is_recorded() -> bool:
    """Whether a `tf.GradientTape` records what this thread computes."""
    return record.could_possibly_record()


def give_gradient(outputs: list, inputs: list, backward: Callable, *, name: str) -> None:
    """Gives outputs that were computed without one a gradient.

    TensorFlow's public `custom_gradient` walks through the graph, of all replicas, for variables.

    Args:
        outputs: Tensors.
        inputs: The tensors that they depend on.
        backward: Called with the gradients of the outputs; returns those of the inputs. What it
            computes with the outputs and inputs is differentiable in turn.
        name: Of the operation, for TensorFlow's messages.
    """
    record.record_operation(name, outputs, inputs, backward)


@contextlib.contextmanager
def wide_broadcasts() -> Generator[None]:
    """Lets several workers make variables of all dtypes of numbers.

    TensorFlow sends the first value from the chief, and cannot send bfloat16 or int8, for example:
    these are sent as a wider one, which keeps every value.
    """

    def send_wide(send: Callable, value: Any, shape: Any, dtype: tf.DType, *args: Any):
        wide = _sendable(dtype)
        return send(value if wide == dtype else tf.cast(value, wide), shape, wide, *args)

    def receive_wide(receive: Callable, shape: Any, dtype: tf.DType, *args: Any):
        wide = _sendable(dtype)
        value = receive(shape, wide, *args)
        return value if wide == dtype else tf.cast(value, dtype)

    replaced = {
        (collective_ops, "broadcast_send"): send_wide,
        (collective_ops, "broadcast_recv"): receive_wide,
    }
    with names.replaced(replaced):
        yield


def _sendable(dtype: tf.DType) -> tf.DType:
    if dtype.size >= 4 or dtype == tf.float16 or dtype == tf.bool:
        return dtype
    # Whether float8 is called floating depends on the version of ml_dtypes.
    return tf.int32 if dtype.is_integer else tf.float32
