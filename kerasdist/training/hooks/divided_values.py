"""Values in several parts: rows on parameter servers, or one value for each replica."""

from typing import Any

import tensorflow as tf

from kerasdist.private import variable_adapter


def parts_of(variable: Any) -> list[tf.Variable]:
    """Returns the parts of a variable of TensorFlow's; itself where it is in one piece."""
    return list(variable.variables) if is_sharded(variable) else [variable]


def is_sharded(variable: Any) -> bool:
    """Whether a variable of TensorFlow's is in several parts, with some of its rows each."""
    return isinstance(variable, variable_adapter.ShardedVariable)


def is_variable(value: Any) -> bool:
    """Whether something is a variable of TensorFlow's, in one part or several."""
    return isinstance(value, tf.Variable) or is_sharded(value)


def is_distributed(batch: Any) -> bool:
    """Whether a batch comes from a distributed dataset, with a value for each replica."""
    return any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in tf.nest.flatten(batch))
