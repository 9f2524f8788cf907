"""The random numbers that training steps draw: where, and (on request) alike for all examples.

On several replicas each draws for its own examples, so that a program with Dropout differs from one
device by nature. Where every example gets the same numbers, whatever still differs is no chance.
"""

import functools
import inspect
import threading

import tensorflow as tf

# Functions whose first argument is a shape, each with the one that does the same from a seed alone.
_SHAPED = {
    "normal": "stateless_normal",
    "uniform": "stateless_uniform",
    "truncated_normal": "stateless_truncated_normal",
    "stateless_normal": "stateless_normal",
    "stateless_uniform": "stateless_uniform",
    "stateless_truncated_normal": "stateless_truncated_normal",
}
# Functions that choose among what they are given; these stay as they are.
_CHOOSING = ("categorical", "stateless_categorical", "shuffle")
_SEED = (1, 2)  # In the place of a state, of which each replica has its own.


class Draws:
    """Stands before the functions of `tf.random`, which Keras' own call too.

    Use it as a context around each training step: what is drawn outside is left alone.

    Args:
        are_alike: Whether all examples get the same numbers in a step.

    Attributes:
        places: Where in the model numbers were drawn: "sequential/dropout".
    """

    def __init__(self, *, are_alike: bool):
        self.places: set[str] = set()
        self._are_alike = are_alike
        self._is_in_step = False
        self._lock = threading.Lock()  # Replicas are traced in threads.
        for name, twin in _SHAPED.items():
            self._replace(tf.random, name, functools.partial(_draw_alike, getattr(tf.random, twin)))
        drop_alike = functools.partial(_drop_alike, tf.nn.experimental.stateless_dropout)
        self._replace(tf.nn.experimental, "stateless_dropout", drop_alike)
        self._replace(tf.nn, "dropout", drop_alike)
        for name in _CHOOSING:
            self._replace(tf.random, name, None)

    def __enter__(self):
        self._is_in_step = True

    def __exit__(self, *_):
        self._is_in_step = False

    def _replace(self, module, name, alike):
        stock = getattr(module, name)
        signature = inspect.signature(stock)

        @functools.wraps(stock)
        def draw(*args, **kwargs):
            if not self._is_in_step:
                return stock(*args, **kwargs)
            with self._lock:
                self.places.add(tf.get_current_name_scope() or "train_step")
            if not self._are_alike or alike is None:
                return stock(*args, **kwargs)
            return alike(**signature.bind(*args, **kwargs).arguments)

        setattr(module, name, draw)


def _draw_alike(draw, *, shape, seed=None, name=None, **arguments):
    """Draws for one example, and gives it to all."""
    shape = tf.cast(shape, tf.int32)
    one = draw(_of_one_example(shape), seed=_stateless(seed), **arguments)
    return tf.broadcast_to(one, shape)


def _drop_alike(drop, *, x, rate, seed=None, noise_shape=None, name=None, rng_alg=None):
    shape = tf.cast(tf.shape(x) if noise_shape is None else noise_shape, tf.int32)
    return drop(x, rate, seed=_stateless(seed), noise_shape=_of_one_example(shape))


def _of_one_example(shape):
    return tf.concat([tf.ones_like(shape[:1]), shape[1:]], axis=0)


def _stateless(seed):
    return _SEED if seed is None or isinstance(seed, int) else seed
