"""The state that Keras keeps for each thread: settings, and numbers without a seed.

tests/private/test_keras_threads.py fails when one of these names moves. Written against Keras 3.12
to 3.15.
"""

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from kerasdist.private import names

# Keras calls it so in the state of a thread; there is no constant in 3.12.
GLOBAL_SEED_GENERATOR = "global_seed_generator"
# The state of a thread has here what the thread has replaced, see `names.of_thread`.
_REPLACED = "kerasdist_replaced"


def is_stateless() -> bool:
    """Whether assignments of this thread go to a `keras.StatelessScope`, not to variables."""
    return global_state.get_global_attribute("stateless_scope") is not None


def thread_state() -> dict:
    """Returns what Keras keeps for this thread: settings, counters of names, random generators."""
    state = vars(global_state.GLOBAL_STATE_TRACKER)
    state.setdefault(_REPLACED, names.of_thread())
    return state


def inherit(state: dict) -> None:
    """Gives this thread the settings of another one, such as its dtype policy.

    Args:
        state: The `thread_state` of that one.
    """
    own = thread_state()
    names.inherit(state[_REPLACED])
    for name, value in state.items():
        own.setdefault(name, list(value) if isinstance(value, list) else value)


def set_global_seed_generator(state: dict, generator: keras.random.SeedGenerator):
    """Makes a generator that of numbers without a seed in a thread with this state; returns it."""
    state[GLOBAL_SEED_GENERATOR] = generator
    return generator


def known_global_seed_generator(state: dict | None = None) -> keras.random.SeedGenerator | None:
    """Returns the generator of numbers without a seed; None where there is none yet.

    Args:
        state: `thread_state()` of the thread that it is of; of this one by default.
    """
    return (thread_state() if state is None else state).get(GLOBAL_SEED_GENERATOR)


def make_global_seed_generator() -> None:
    """Makes the generator of numbers without a seed of this thread where there is none."""
    seed_generator.global_seed_generator()
