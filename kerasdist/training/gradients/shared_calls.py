"""Calls that a step makes once on one device, and that its replicas make once for all.

The next element of an iterator that the program holds is one for the whole batch: each replica gets
the same. So is a single random number, such as a coin that decides about an update. Where every
replica has the whole batch, all random numbers are.
"""

import contextlib
import functools
import operator
from collections.abc import Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import call_adapter
from kerasdist.support.users_line import warn
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica import replicas


@contextlib.contextmanager
def made_once(strategy) -> Generator[None]:
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

    def read(original, iterator, *args, **kwargs):
        if id(iterator) not in before:
            before[id(iterator)] = iterator, call_adapter.state_of(iterator)
        return original(iterator, *args, **kwargs)

    try:
        with call_adapter.handed_to(draw=operator.call, read=read):
            yield
    finally:
        for iterator, state in before.values():
            call_adapter.set_state(iterator, state)


def _read(original, *args, **kwargs):
    step: Any = replicas.current()
    if step is not None and step.calls.is_first and step.is_first:
        _warn_if_out_of_reach(step)
    return _of_first(step, original, args, kwargs)


def _warn_if_out_of_reach(step) -> None:
    """Warns of an iterator that is read where a replica cannot have what another one reads."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph() is step.graph:
        return
    warn(
        "The step reads from an iterator inside of a condition or a loop, where each replica reads "
        "an element of its own, and one device reads one for the whole batch: the weights will be "
        "other ones than there. Read it before the condition or the loop."
    )


def _draw(original, *args, **kwargs):
    step = replicas.current()
    if step is None or gradient_aggregation.is_aggregated():
        return original(*args, **kwargs)
    if step.trial is not None:  # All draw alike, some for fewer examples than the first.
        return original(*args, **kwargs)
    if step.has_whole_batch:
        return _of_first(step, original, args, kwargs)
    if not step.draws_alone or not _is_for_one_number(args, kwargs):
        return original(*args, **kwargs)
    number = _of_first(step, original, args, kwargs)
    if step.dependence is not None:
        step.dependence.end_at(number)
    return number


def _of_first(step, original, args, kwargs) -> Any:
    """Makes a call on the first replica of this process; returns on the others what it gave."""
    if step is None:
        return original(*args, **kwargs)
    return step.calls.get(original, functools.partial(original, *args, **kwargs))


def _is_for_one_number(args: tuple, kwargs: dict) -> bool:
    shape: Any = kwargs["shape"] if "shape" in kwargs else args[0] if args else None
    if tf.is_tensor(shape):
        return shape.dtype.is_integer and shape.shape.as_list() == [0]
    return isinstance(shape, list | tuple | tf.TensorShape) and len(shape) == 0
