"""Make once for all replicas the calls that a step makes once on one device.

The next element of an iterator that the program holds is one for the whole batch: each replica gets
the same. So is a single random number, such as a coin that decides about an update. Where every
replica has the whole batch, all random numbers are.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import call_adapter
from kerasdist.support.users_line import warn
from kerasdist.training.replica import replicas
from kerasdist.training.replica.replicas import Replica


@contextlib.contextmanager
def made_once(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Lets the replicas of this process share what the first of them has got.

    Args:
        strategy: What is inside traces, or runs, a step over its replicas.
    """
    if strategy.num_replicas_in_sync == 1:
        yield
        return
    with call_adapter.handed_to(draw=_draw, read=_read):
        yield


@contextlib.contextmanager
def iterators_kept() -> Generator[None]:
    """Puts back the iterators that are read inside, eagerly.

    Raises:
        tf.errors.OpError: A part of the data of one lies in Python, and cannot be put back.
    """
    before: dict = {}

    def read(original: Callable, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if id(iterator) not in before:
            before[id(iterator)] = iterator, call_adapter.state_of(iterator)
        return original(iterator, *args, **kwargs)

    try:
        with call_adapter.handed_to(draw=operator.call, read=read):
            yield
    finally:
        for iterator, state in before.values():
            call_adapter.set_state(iterator, state)


def _read(original: Callable, *args: Any, **kwargs: Any) -> Any:
    replica = replicas.current()
    if replica is None:
        return original(*args, **kwargs)
    replica.check_can_meet()
    if replica.calls.is_first and replica.is_first:
        _warn_if_out_of_reach(replica)
    return _of_first(replica, original, args, kwargs)


def _warn_if_out_of_reach(replica: Replica) -> None:
    """Warns of an iterator that is read where a replica cannot have what another one reads."""
    if tf.executing_eagerly() or replica.is_in_step_graph():
        return
    warn(
        "The step reads from an iterator inside of a condition or a loop, where each replica reads "
        "an element of its own, and one device reads one for the whole batch: the weights will be "
        "other ones than there. Read it before the condition or the loop."
    )


def _draw(original: Callable, *args: Any, **kwargs: Any) -> Any:
    replica = replicas.current()
    if replica is None or replica.updates.are_local:
        return original(*args, **kwargs)
    if not replica.draws_for_all(lambda: _is_for_one_number(args, kwargs)):
        return original(*args, **kwargs)
    replica.check_can_meet()
    number = _of_first(replica, original, args, kwargs)
    replica.note_draw(number)
    return number


def _of_first(replica: Replica, original: Callable, args: tuple, kwargs: dict) -> Any:
    """Makes a call on the first replica of this process; returns on the others what it gave."""
    return replica.calls.get(original, functools.partial(original, *args, **kwargs))


def _is_for_one_number(args: tuple, kwargs: dict) -> bool:
    shape: Any = kwargs["shape"] if "shape" in kwargs else args[0] if args else None
    if tf.is_tensor(shape):
        return shape.dtype.is_integer and shape.shape.as_list() == [0]
    return isinstance(shape, list | tuple | tf.TensorShape) and len(shape) == 0
