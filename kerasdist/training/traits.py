"""Where the variables of a strategy live, and who waits for whom.

Today both answers are the same, since asynchronous workers are all that parameter servers have.
"""

import tensorflow as tf


def has_remote_variables(strategy) -> bool:
    """Whether variables live on parameter servers, and not where the steps are computed."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def keeps_own_pace(strategy) -> bool:
    """Whether each worker makes steps of its own, and waits for no other."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)
