"""Hands on the calls by which a step draws numbers and reads from iterators.

On one device a step makes each of these calls once; `gradients/shared_calls.py` says which of
them the replicas make once for all. Importing this file changes nothing.

tests/private/test_call_adapter.py fails when one of these names moves. Written against TensorFlow
2.20 and 2.21.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import (
    gen_dataset_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from kerasdist.private import names

# tf.data's policy by which seeds that lie outside of an iterator stay as they are.
_IGNORE = 1
# Behind `next(iterator)`, in graphs and eagerly: there is no public hook.
NEXT = ("iterator_get_next", "iterator_get_next_as_optional")
# Behind all of `tf.random` and `keras.random`. That of a `tf.random.Generator` moves it on.
RANDOM_MODULES = (
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
DRAWS = re.compile(
    r"(stateful_|stateless_)?(random_|standard_|truncated_|parameterized_)*"
    r"(normal|uniform|uniform_int|uniform_full_int|gamma|poisson|binomial|multinomial|shuffle)"
    r"(_v[23])?|rng_read_and_skip"
)


@contextlib.contextmanager
def handed_to(draw: Callable, read: Callable) -> Generator[None]:
    """Lets other functions make the calls inside.

    Args:
        draw: Called as draw(original, *args, **kwargs) where a number is drawn.
        read: Called in the same way where the next element of an iterator is read.
    """
    reads = ((gen_dataset_ops, name) for name in NEXT)
    with names.replaced(dict.fromkeys(draws(), draw) | dict.fromkeys(reads, read)):
        yield


@functools.cache
def draws() -> tuple:
    """Returns module and name of each function that draws."""
    found = ((module, name) for module in RANDOM_MODULES for name in vars(module))
    return tuple(each for each in found if DRAWS.fullmatch(each[1]))


def state_of(iterator: tf.Tensor) -> tf.Tensor:
    """Returns where a resource of an iterator is in its data: variant [parts]; eager.

    Raises:
        tf.errors.OpError: A part of its data lies in Python, and is not known.
    """
    return gen_dataset_ops.serialize_iterator(iterator, external_state_policy=_IGNORE)


def set_state(iterator: tf.Tensor, state: tf.Tensor) -> None:
    """Puts an iterator back to a state that `state_of` has returned."""
    gen_dataset_ops.deserialize_iterator(iterator, state)


@contextlib.contextmanager
def operations_told(tell: Callable) -> Generator[None]:
    """Tells of each operation that runs at once, in this thread and in those of its replicas.

    TensorFlow's debugger has no other way either.

    Args:
        tell: Called as tell(type, inputs, outputs) after it has run, with tensors.
    """

    def look(
        kind: str | bytes,
        inputs: Any,
        attributes: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ):
        if graph is None:  # With a graph, it is traced.
            tell(tf.compat.as_str(kind), inputs, outputs)  # The kind of a function is bytes.

    op_callbacks.add_op_callback(look)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(look)
