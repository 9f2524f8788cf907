"""Random numbers that are the same on several tasks.

Each worker shuffles the same data and takes its part of it, so the order must agree. What the user
has seeded is left alone: the program then draws the numbers that it draws on one device.
"""

import pickle
import random
import zlib

import numpy as np
import tensorflow as tf

from kerasdist.private import runtime
from kerasdist.training.context import peers


def agree(strategy: tf.distribute.Strategy) -> None:
    """Gives the random generators that differ between the workers the same seed.

    If TensorFlow has a seed, the user has set the seeds, even if workers differ on purpose.

    Args:
        strategy: Our MultiWorkerMirroredStrategy; all workers call this.
    """
    is_seeded = runtime.global_seed() is not None
    table = np.zeros([peers.count(strategy), 4])
    table[peers.index_of(strategy)] = [is_seeded, _peek(), *_fingerprints()]
    seeded, seeds, *fingerprints = peers.sum_over(strategy, table).T
    if seeded.any():
        return
    seed = int(seeds[0])
    tf.random.set_seed(seed)
    for set_seed, values in zip((random.seed, np.random.seed), fingerprints, strict=True):
        if (values != values[0]).any():
            set_seed(seed)


def seed_tensorflow() -> None:
    """Gives TensorFlow a seed unless the user has; datasets that are sent to workers include it."""
    if runtime.global_seed() is None:
        tf.random.set_seed(_peek())


def _peek() -> int:
    """Returns what numpy would draw next, so a program that seeds only numpy is repeatable, too."""
    generator = np.random.RandomState()
    generator.set_state(np.random.get_state())
    return int(generator.randint(2**31))


def _fingerprints() -> list[int]:
    """Returns numbers that tell states of the generators of Python and numpy apart."""
    states = random.getstate(), np.random.get_state(legacy=False)
    return [zlib.crc32(pickle.dumps(state)) for state in states]
