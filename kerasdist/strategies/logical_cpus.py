"""Logical CPUs: several devices of one processor, to run many replicas without a GPU."""

import contextlib

import tensorflow as tf

# TensorFlow fixes their number when it starts, so the first strategy makes enough for later ones:
# the next cell of a notebook may ask for another number of clones.
_NUM_RESERVED = 8


def make_logical_cpus(count: int) -> None:
    """Makes sure that TensorFlow has `count` logical CPUs, and starts it.

    Raises:
        RuntimeError: TensorFlow has started with fewer.
    """
    reserve_logical_cpus(max(count, _NUM_RESERVED))
    available = len(tf.config.list_logical_devices("CPU"))
    if available < count:
        raise RuntimeError(
            f"{count} clones on CPU need {count} logical CPUs, but TensorFlow has started with "
            f"{available}. Call `make_strategy` before creating tensors or models; in a notebook, "
            "restart the kernel and call it in the first cell."
        )


def reserve_logical_cpus(count: int) -> None:
    """Asks TensorFlow for `count` logical CPUs, unless this was done before or it has started."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if count and tf.config.get_logical_device_configuration(cpu) is None:
        # Fails if TensorFlow has started: then its devices are used as they are.
        with contextlib.suppress(RuntimeError):
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * count
            )
