"""Variables of ours that a step writes and the chief reads, such as counters and records.

with step_variables.being_made(strategy):
    count = tf.Variable(0, trainable=False)
"""

import contextlib
from collections.abc import Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import scopes
from kerasdist.training.context import traits

# Their names begin with it, before a slash.
_SCOPE = "kerasdist"


@contextlib.contextmanager
def being_made(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Makes the variables inside such ones, whatever scope or trace is around.

    On parameter servers they are shared by all workers. Elsewhere they are plain ones.
    """
    is_remote = traits.has_remote_variables(strategy)
    with (
        scopes.outside_scopes(),
        strategy.scope() if is_remote else contextlib.nullcontext(),
        tf.name_scope(_SCOPE),
    ):
        yield


def is_one(variable: Any) -> bool:
    """Whether a variable was made so, and not by a program."""
    return _SCOPE in variable.name.split("/")[:-1]
