"""Variables of ours that a step writes and the chief reads, such as counters and records.

with step_variables.being_made(strategy):
    count = tf.Variable(0, trainable=False)
"""

import contextlib
from collections.abc import Generator

from kerasdist.private import tensorflow_adapter
from kerasdist.training import traits


@contextlib.contextmanager
def being_made(strategy) -> Generator[None]:
    """Makes the variables inside such ones, whatever scope or trace is around.

    On parameter servers they are shared by all workers. Elsewhere they are plain ones.
    """
    is_remote = traits.has_remote_variables(strategy)
    with (
        tensorflow_adapter.outside_scopes(),
        strategy.scope() if is_remote else contextlib.nullcontext(),
    ):
        yield
