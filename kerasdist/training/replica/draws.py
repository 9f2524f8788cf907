"""See where training steps draw random numbers, and draw them alike for all examples on request.

On several replicas each draws for its own examples, so that a program with Dropout differs from one
device by nature. Where every example gets the same numbers, whatever still differs is no chance.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import tensorflow as tf

from kerasdist.private import scopes
from kerasdist.support import memory
from kerasdist.support.users_line import warn
from kerasdist.training.replica import graph_facts
from kerasdist.training.replica.replicas import Peer, Replica

# Functions whose first argument is a shape, each with the one that does the same from a seed alone.
_SHAPED = {
    "normal": "stateless_normal",
    "uniform": "stateless_uniform",
    "truncated_normal": "stateless_truncated_normal",
    "stateless_normal": "stateless_normal",
    "stateless_uniform": "stateless_uniform",
    "stateless_truncated_normal": "stateless_truncated_normal",
}
# Functions whose numbers depend on more than a shape; these stay as they are.
_UNCHANGED = (
    *("categorical", "stateless_categorical", "shuffle", "gamma", "stateless_gamma"),
    *("poisson", "stateless_poisson", "stateless_binomial"),
)
_SEED = (1, 2)  # In the place of a state, of which each replica has its own.


def are_alike() -> bool:
    """Whether all replicas must draw the same numbers just now."""
    entered = memory.PROCESS.draws
    return entered is not None and entered.are_alike


@contextlib.contextmanager
def looked_for_in_update(optimizer: Any, replica: Replica) -> Generator[None]:
    """Warns if an optimizer draws with `tf.random`: each replica's weights get other numbers.

    Those of `keras.random` are alike there, see `randomness.next_seed`.

    Args:
        optimizer: What is traced inside is its update.
        replica: The one that traces it.
    """
    if not isinstance(replica, Peer) or not replica.is_first or tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    num_before = len(graph.get_operations())
    yield
    if graph_facts.draws_from_state(graph.get_operations()[num_before:]):
        warn(
            f"The update of {type(optimizer).__name__} draws with `tf.random`, of which every "
            "replica has numbers of its own, so that their weights drift apart. Draw with "
            "`keras.random`, whose numbers are the same on all replicas there."
        )


class Draws:
    """Stands before the functions of `tf.random`, which Keras' own call too, while it is entered.

    For what is traced; `trial_adapter.alike_draws` is for what runs at once.

    Attributes:
        are_alike: Whether all examples get the same numbers.
        places: Where in the model numbers were drawn: "sequential/dropout".
    """

    def __init__(self, *, are_alike: bool):
        self.places: set[str] = set()
        self.are_alike = are_alike
        self._lock = threading.Lock()  # Replicas are traced in threads.
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        self._stack.enter_context(scopes.around_initializers(self._left_alone))
        draws = {name: getattr(tf.random, twin) for name, twin in _SHAPED.items()}
        drop = tf.nn.experimental.stateless_dropout
        for name, draw in draws.items():
            self._replace(tf.random, name, functools.partial(_draw_alike, draw))
        for module, name in ((tf.nn.experimental, "stateless_dropout"), (tf.nn, "dropout")):
            self._replace(module, name, functools.partial(_drop_alike, drop))
        for name in _UNCHANGED:
            self._replace(tf.random, name, None)
        memory.PROCESS.draws = self
        return self

    def __exit__(self, *_):
        memory.PROCESS.draws = None
        self._stack.close()

    @contextlib.contextmanager
    def _left_alone(self) -> Generator[None]:
        """Lets this thread draw as ever: the first value of a weight is none of an example's."""
        before, memory.THREAD.draws_as_ever = memory.THREAD.draws_as_ever, True
        try:
            yield
        finally:
            memory.THREAD.draws_as_ever = before

    def _replace(self, module: ModuleType, name: str, alike: Callable | None) -> None:
        original = getattr(module, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def draw(*args, **kwargs):
            if memory.THREAD.draws_as_ever:
                return original(*args, **kwargs)
            with self._lock:
                self.places.add(tf.get_current_name_scope() or "train_step")
            if not self.are_alike or alike is None:
                return original(*args, **kwargs)
            return alike(**signature.bind(*args, **kwargs).arguments)

        setattr(module, name, draw)
        self._stack.callback(setattr, module, name, original)


def _draw_alike(
    draw: Callable, *, shape: Any, seed: Any = None, name: str | None = None, **arguments: Any
) -> tf.Tensor:
    """Draws for one example, and gives it to all."""
    shape = tf.cast(shape, tf.int32)
    one = draw(_of_one_example(shape), seed=_stateless(seed), **arguments)
    return tf.broadcast_to(one, shape)


def _drop_alike(
    drop: Callable,
    *,
    x: tf.Tensor,
    rate: Any,
    seed: Any = None,
    noise_shape: Any = None,
    name: str | None = None,
    rng_alg: Any = None,
) -> tf.Tensor:
    shape = tf.cast(tf.shape(x) if noise_shape is None else noise_shape, tf.int32)
    return drop(x, rate, seed=_stateless(seed), noise_shape=_of_one_example(shape))


def _of_one_example(shape: Any) -> tf.Tensor:
    return tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)


def _stateless(seed: Any) -> Any:
    return _SEED if seed is None or isinstance(seed, int) else seed
