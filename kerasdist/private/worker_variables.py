"""Variables in the process of a worker of parameter servers, which only its own steps see.

tests/private/test_worker_variables.py fails when one of these names moves.
"""

import uuid

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


def unique_name() -> str:
    """Returns a name that nobody else has, also where a later program meets the same workers."""
    return f"kerasdist_{uuid.uuid4().hex}"


def variable(like: tf.Variable | tf.TensorSpec, name: str) -> tf.Variable:
    """Returns a variable of the worker that runs the function which is being traced.

    TensorFlow's PerWorkerVariable has no automatic control dependencies, so that reads may come
    before writes.

    Args:
        like: What has its shape and dtype.
        name: Which one it is, among all of that worker's process.
    """
    return resource_variable_ops.BaseResourceVariable(**_arguments(like, name), trainable=False)


def _arguments(like, name) -> dict:
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

    def assign(self, value, *args, **kwargs):
        self.original.assign(value)
        return super().assign(value, *args, **kwargs)

    def assign_add(self, delta, *args, **kwargs):
        self.original.assign_add(delta)
        return super().assign_add(delta, *args, **kwargs)

    def assign_sub(self, delta, *args, **kwargs):
        self.original.assign_sub(delta)
        return super().assign_sub(delta, *args, **kwargs)


def copy(original: tf.Variable, name: str, value: tf.Tensor) -> _Copy:
    """Returns a copy on the worker that runs the function which is being traced.

    Args:
        original: A trainable variable on a parameter server.
        name: Which one it is, among all of that worker's process.
        value: What it holds.
    """
    arguments = _arguments(original, name)
    handle = arguments["handle"]
    # The gradient of a loop asks for the shape of a variable without waiting for more than this.
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=handle, value=value)]):
        arguments["handle"] = tf.identity(handle)
    variable = _Copy(**arguments, trainable=True)
    variable.original = original
    return variable


def numbers(name: str, count: int) -> tf.Tensor:
    """Returns what `note_numbers` left on this worker: int64 [count], 0 before."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[count], shared_name=name)
    return tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=handle),
        lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64),
        lambda: tf.zeros([count], tf.int64),
    )


def note_numbers(name: str, values: tf.Tensor | list) -> None:
    """Leaves numbers on the worker that runs the function which is being traced.

    Args:
        name: Which ones, among all of that worker's process.
        values: int64 [count], or as many integers.
    """
    values = tf.convert_to_tensor(values, tf.int64)
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=values.shape, shared_name=name)
    tf.raw_ops.AssignVariableOp(resource=handle, value=values)
