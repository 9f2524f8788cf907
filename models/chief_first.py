"""Work that the chief has to do before the other workers, such as writing what they read.

with chief_first(strategy, cluster):
    dataset = load()        # The chief writes its files; the others find them.
"""

import contextlib
from collections.abc import Generator

import tensorflow as tf

import kerasdist


@contextlib.contextmanager
def chief_first(
    strategy: tf.distribute.Strategy, cluster: kerasdist.Cluster
) -> Generator[None, None, None]:
    """Lets the chief run the body first, and then the other workers; all of them must call it.

    If the chief fails, the others end as they do whenever a peer is lost. With parameter servers
    only the chief runs the program, so nobody waits.
    """
    if cluster.num_ps:
        yield
        return
    if not cluster.is_chief:
        _meet(strategy)
    yield
    if cluster.is_chief and not cluster.is_local:
        _meet(strategy)


def _meet(strategy: tf.distribute.Strategy) -> None:
    """Waits for all workers: a sum is complete when each of them has contributed.

    If one of them is gone, it fails at once. `kerasdist.barrier` would wait until its timeout,
    which could not be short: the chief may take hours.
    """

    def replica_fn():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    tf.function(lambda: strategy.run(replica_fn), autograph=False)()
