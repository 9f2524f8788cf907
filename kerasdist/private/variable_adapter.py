"""Variables of several replicas, of parameter servers, and of one worker's process.

tests/private/test_variable_adapter.py fails when one of these names moves. Written against Keras
3.12 to 3.15, and TensorFlow 2.20 and 2.21.
"""

import uuid
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import sharded_variable, values
from tensorflow.python.ops import resource_variable_ops

from kerasdist.private import names

# TensorFlow's ParameterServerStrategy makes one of a variable that its partitioner divides.
ShardedVariable = sharded_variable.ShardedVariable


def value_of(variable: keras.Variable | tf.Variable):
    """Returns the variable of TensorFlow's that is updated: what Keras' holds, or itself."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def add_in_place(variable: keras.Variable, value: Any) -> None:
    """Adds to a variable where it lives, in one operation."""
    with tf.device(variable._value.device):  # A constant need not be sent.
        variable._value.assign_add(tf.cast(value, variable._value.dtype), read_value=False)


def let_variables_be_numbers() -> None:
    """Lets variables of several devices, or in several parts, be arrays and numbers.

    As variables of one device are: `float(optimizer.learning_rate.value)`. TensorFlow has them
    raise TypeError and ValueError, so that nothing becomes different where it worked.
    """

    def as_array(variable: Any, dtype: Any = None, copy: Any = None):
        return np.array(variable.numpy(), dtype, copy=copy)

    methods = {
        "__array__": as_array,
        "__float__": lambda variable: float(variable.numpy()),
        "__int__": lambda variable: int(variable.numpy()),
    }
    for kind in (values.DistributedVariable, ShardedVariable):
        for name, method in methods.items():
            names.replace(kind, name, method)


def read_first_replica(variable: Any) -> None:
    """Lets a variable with a value on each replica read as that of the first one of this worker."""
    if isinstance(variable, values.SyncOnReadVariable):
        variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def reads_first_replica(variable: Any) -> bool:
    """Whether a variable reads so: by `read_first_replica`, or as it was made."""
    aggregation = getattr(variable, "aggregation", None)
    return aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA


def read_sum(variable: Any) -> None:
    """Lets a variable with a value on each replica read as their sum, as it does at first."""
    if isinstance(variable, values.SyncOnReadVariable):
        variable._aggregation = tf.VariableAggregation.SUM


def full_names(object_graph: bytes) -> dict[str, str]:
    """Returns the names of variables by their keys in a checkpoint of objects.

    TensorFlow has no public class to read the message in which such a checkpoint has them.

    Args:
        object_graph: That message, a TrackableObjectGraph.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2 as protocol

    graph = protocol.TrackableObjectGraph.FromString(object_graph)  # ty: ignore[missing-attribute]
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return {each.checkpoint_key: each.full_name for each in attributes}


def unique_name() -> str:
    """Returns a name that nobody else has, also where a later program meets the same workers."""
    return f"kerasdist_{uuid.uuid4().hex}"


def worker_variable(like: tf.Variable | tf.TensorSpec, name: str) -> tf.Variable:
    """Returns a variable of the worker that runs the function which is being traced.

    TensorFlow's PerWorkerVariable has no automatic control dependencies, so that reads may come
    before writes.

    Args:
        like: What has its shape and dtype.
        name: Which one it is, among all of that worker's process.
    """
    return resource_variable_ops.BaseResourceVariable(**_arguments_of(like, name), trainable=False)


def _arguments_of(like: tf.Variable | tf.TensorSpec, name: str) -> dict:
    return {
        "handle": tf.raw_ops.VarHandleOp(
            dtype=like.dtype, shape=like.shape, shared_name=name, container=""
        ),
        "handle_name": name,
        "unique_id": name,
        "shape": like.shape,
        "dtype": like.dtype,
        "in_graph_mode": True,
    }


class _Copy(resource_variable_ops.BaseResourceVariable):
    """A variable of a worker that is read in the place of one on a parameter server.

    What is assigned to it is assigned to that one too.
    """

    original: tf.Variable

    def assign(self, value: Any, *args: Any, **kwargs: Any):
        self.original.assign(value)
        return super().assign(value, *args, **kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any):
        self.original.assign_add(delta)
        return super().assign_add(delta, *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any):
        self.original.assign_sub(delta)
        return super().assign_sub(delta, *args, **kwargs)


def worker_copy(
    original: tf.Variable, name: str, value: tf.Tensor, *, is_apart: bool = False
) -> tf.Variable:
    """Returns a copy on the worker that runs the function which is being traced.

    Args:
        original: A variable on a parameter server.
        name: Which one it is, among all of that worker's process.
        value: What it holds.
        is_apart: Whether what is assigned to it is not assigned to the original.
    """
    with tf.device("/device:CPU:0"):
        arguments = _arguments_of(original, name)
        handle = arguments["handle"]
        # The gradient of a loop asks for the shape of a variable, and waits for no more than this.
        with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=value)]):
            arguments["handle"] = tf.identity(handle)
    if is_apart:
        plain = resource_variable_ops.BaseResourceVariable
        return plain(**arguments, trainable=original.trainable)
    variable = _Copy(**arguments, trainable=True)
    variable.original = original
    return variable


def worker_numbers(name: str, count: int) -> tf.Tensor:
    """Returns what `note_worker_numbers` left on this worker: int64 [count], 0 before."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[count], shared_name=name)
    return tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=handle),
        lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
        lambda: tf.zeros([count], tf.int64),
    )


def note_worker_numbers(name: str, numbers: tf.Tensor | list) -> None:
    """Leaves numbers on the worker that runs the function which is being traced.

    Args:
        name: Which ones, among all of that worker's process.
        numbers: int64 [count], or as many integers.
    """
    numbers = tf.convert_to_tensor(numbers, tf.int64)
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=numbers.shape, shared_name=name)
    tf.raw_ops.AssignVariableOp(resource=handle, value=numbers)
