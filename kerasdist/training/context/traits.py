"""Questions about a strategy: where its variables live, and who waits for whom."""

import keras
import tensorflow as tf

from kerasdist.training.context import deployment


def has_remote_variables(strategy: object) -> bool:
    """Whether variables live on parameter servers, and not where the steps are computed."""
    return deployment.of(strategy).has_remote_variables


def is_async(strategy: object) -> bool:
    """Whether each worker makes steps of its own, and waits for no other."""
    return deployment.of(strategy).is_async


def is_one_device(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy has one replica, in this process, and no other task."""
    return strategy.num_replicas_in_sync == 1 and not has_remote_variables(strategy)


def is_compiled_by_xla(model: keras.Model) -> bool:
    """Whether XLA compiles the steps of a model: of one device, with `jit_compile=True`."""
    return bool(model.jit_compile) and is_one_device(model.distribute_strategy)
