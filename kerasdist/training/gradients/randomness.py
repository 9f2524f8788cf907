"""Draw random numbers: others on every replica, the same in every run with the same seed.

Keras alone gives each replica a copy of the seed, so that all replicas drop the same units. Here
replica 0 keeps the numbers of one device, and the others add their position to the seed. While they
update the weights, each its own copy, they draw the same ones, and so they do where each has the
whole batch. The operations of `tf.random` have a seed in the graph, which every worker traces for
itself; which of them come once for all is in `shared_calls`.
"""

import contextlib
import functools
import random
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_threads, strategy_adapter
from kerasdist.support import memory
from kerasdist.support.shared_context import SharedContext
from kerasdist.support.users_line import warn
from kerasdist.training.replica import draws, graph_facts, replicas

# Odd and near 2**32 divided by the golden ratio: the seeds of neighbours differ in half of their
# bits.
_STRIDE = 0x9E3779B1


def next_seed(
    replica: replicas.Replica, original: Callable, generator: Any, ordered: bool = True
) -> tf.Tensor:
    """Stands before `keras.random.SeedGenerator.next`; returns a seed [2] of the same dtype."""
    seed = _seed_of_first(replica, original, generator, ordered)
    replica_id = replica.replica_id
    is_only = not tf.is_tensor(replica_id) and replica_id == 0
    if is_only or replica.updates.are_local or draws.are_alike():
        return seed
    position = tf.convert_to_tensor(replica_id, tf.int64)
    offset = tf.stack([(_STRIDE * position) & 0x7FFFFFFF, tf.zeros_like(position)])
    return seed + tf.cast(offset, seed.dtype)


def _seed_of_first(
    replica: replicas.Replica, original: Callable, generator: Any, ordered: bool
) -> tf.Tensor:
    """Returns the same seed on all replicas: the generator moves on once, as on one device."""
    if getattr(generator.state.value, "distribute_strategy", None) is not None:
        return original(generator, ordered)  # Each replica has a copy of this, too.
    with replica.outside_of_compiled():  # Where the others find it.
        return replica.seeds.get(generator, functools.partial(original, generator, ordered))


@contextlib.contextmanager
def graph_seed_of_worker(first_replica: int) -> Generator[None]:
    """Lets `tf.random`, in what is traced inside, draw other numbers than on other workers.

    Args:
        first_replica: The id of the first replica of this worker. With 0 the numbers are those of
            one device.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not first_replica or graph.seed is None or draws.are_alike():
        yield
        return
    notes = memory.of_part(graph)
    notes.seed_of_all = graph.seed
    try:
        with _seeded(graph, (graph.seed + _STRIDE * first_replica) & 0x7FFFFFFF):
            yield
    finally:
        notes.seed_of_all = None


@contextlib.contextmanager
def graph_seed_of_all() -> Generator[None]:
    """Lets `tf.random` draw the same numbers on all workers, inside of `graph_seed_of_worker`."""
    graph = tf.compat.v1.get_default_graph()
    seed = memory.of_part(graph).seed_of_all
    with _seeded(graph, graph.seed if seed is None else seed):
        yield


@contextlib.contextmanager
def _seeded(graph: Any, seed: int | None) -> Generator[None]:
    before, graph.seed = graph.seed, seed  # Functions inside inherit it.
    try:
        yield
    finally:
        graph.seed = before


def warn_of_repeats(graph: tf.Graph, num_workers: int) -> None:
    """Warns if workers that run one graph, which the chief has traced, draw the same numbers."""
    if num_workers > 1 and graph_facts.has_state_of_draws(graph):
        warn(
            "The step draws with `tf.random`, of which every worker begins with the same numbers: "
            f"those of one step come again in steps of the other {num_workers - 1}. Draw with "
            "`keras.random`, whose numbers all workers take from one generator."
        )


def global_seed_generator(original: Callable) -> Any:
    """Stands before the getter of the generator that random numbers without a seed come from.

    Keras makes one for each thread, where it is first used, and replicas are traced in threads of
    their own. Here they share that of the program. It belongs to no strategy: it is made in a
    thread that has none. One that was made in the scope of another strategy goes on as such a one.
    """
    replica = replicas.current()
    state = keras_threads.thread_state() if replica is None else replica.keras_state
    known = keras_threads.known_global_seed_generator(state)
    if known is not None and _is_of_another_strategy(known):
        make = functools.partial(_copy, known)
    elif known is None and replica is not None:
        make = original
    else:
        return known or original()
    with ThreadPoolExecutor(1) as pool:
        return keras_threads.set_global_seed_generator(state, pool.submit(make).result())


def _is_of_another_strategy(generator: Any) -> bool:
    owner = getattr(generator.state.value, "distribute_strategy", None)
    current = tf.distribute.get_strategy()
    return owner not in (None, current) and strategy_adapter.is_adapted(current)


def _copy(generator: Any) -> keras.random.SeedGenerator:
    numbers = keras.ops.convert_to_numpy(generator.state)
    copy = keras.random.SeedGenerator(int(numbers[0]))
    copy.state.assign(numbers)
    return copy


@contextlib.contextmanager
def generators_kept() -> Generator[None]:
    """Puts back what random numbers come from: Python's, numpy's, and Keras' where it has none."""
    keras_state = keras_threads.thread_state()
    of_keras: Any = keras_threads.known_global_seed_generator(keras_state)
    memory.THREAD.num_generators_kept += 1
    try:
        with _python_is_kept:
            yield
    finally:
        memory.THREAD.num_generators_kept -= 1
        keras_threads.set_global_seed_generator(keras_state, of_keras)


@contextlib.contextmanager
def _python_generators_kept() -> Generator[None]:
    states = _states_of_python()
    try:
        yield
    finally:
        _set_states_of_python(*states)


def _states_of_python() -> tuple:
    return random.getstate(), np.random.get_state()


def _set_states_of_python(of_python: tuple, of_numpy: dict | tuple) -> None:
    random.setstate(of_python)
    np.random.set_state(of_numpy)


_python_is_kept = SharedContext(_python_generators_kept)  # All threads draw from them.


class PythonGenerators:
    """Where Python's and numpy's random numbers are now.

    Not while another thread is in `generators_kept`: its numbers are none of this one's.
    """

    def __init__(self):
        self._num_kept = memory.THREAD.num_generators_kept
        self._states = _python_is_kept.unless_entered(_states_of_python, but_for=self._num_kept)

    def put_back(self) -> None:
        """Lets the same numbers come once more."""
        if self._states is not None:
            put_back = functools.partial(_set_states_of_python, *self._states)
            _python_is_kept.unless_entered(put_back, but_for=self._num_kept)
