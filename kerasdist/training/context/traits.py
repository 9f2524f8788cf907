"""Where the variables of a strategy live, and who waits for whom.

Today both answers are the same, since asynchronous workers are all that parameter servers have.
"""

import tensorflow as tf


def has_remote_variables(strategy) -> bool:
    """Whether variables live on parameter servers, and not where the steps are computed."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def is_one_device(strategy) -> bool:
    """Whether a strategy has one replica, in this process, and no other task."""
    return strategy.num_replicas_in_sync == 1 and not has_remote_variables(strategy)


def is_compiled_by_xla(model) -> bool:
    """Whether XLA compiles the steps of a model: of one device, with `jit_compile=True`."""
    return bool(model.jit_compile) and is_one_device(model.distribute_strategy)


def keeps_own_pace(strategy) -> bool:
    """Whether each worker makes steps of its own, and waits for no other."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)
