"""Logical CPUs: several devices of one processor, to run many replicas without a GPU."""

import contextlib

import tensorflow as tf

# TensorFlow fixes their number when it starts, so the first strategy makes enough for later ones:
# in a notebook the next cell may ask for another number of clones.
_NUM_RESERVED = 8


def make_logical_cpus(count: int) -> None:
    """Makes sure that TensorFlow has `count` logical CPUs.

    Raises:
        RuntimeError: TensorFlow has started with fewer.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        logical = [tf.config.LogicalDeviceConfiguration()] * max(count, _NUM_RESERVED)
        # Fails when TensorFlow has started: what exists then decides, below.
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(cpu, logical)
    available = len(tf.config.list_logical_devices("CPU"))
    if available < count:
        raise RuntimeError(
            f"{count} clones on CPU need {count} logical CPUs, and TensorFlow has started with "
            f"{available}. Call `make_strategy` before creating tensors or models; in a notebook, "
            "restart the kernel and call it in the first cell."
        )
