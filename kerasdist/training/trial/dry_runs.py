"""Runs of a step that leave no trace: operation by operation, on all workers or on none."""

import contextlib
import dataclasses
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_threads, trial_adapter
from kerasdist.support.shared_context import SharedContext
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import randomness
from kerasdist.training.replica import own_attributes
from kerasdist.training.trial import rehearsed_run

# Among what Keras keeps for a thread, which those of its replicas inherit.
_QUIET = "kerasdist_is_quiet"


@contextlib.contextmanager
def without_traces(model) -> Generator[None]:
    """Runs what is inside operation by operation, and leaves no trace of it."""
    with (
        _quiet(),
        # What is traced here would be found again in the steps that count.
        trial_adapter.functions_run_eagerly(),
        tf.summary.record_if(False),
        own_attributes.kept(model),
        randomness.generators_kept(),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Swallows what this thread, and those of its replicas, print and warn of."""
    thread = keras_threads.thread_state()
    with _some_are_quiet:
        before, thread[_QUIET] = _is_quiet(), True
        try:
            yield
        finally:
            thread[_QUIET] = before


def _is_quiet() -> bool:
    return keras_threads.thread_state().get(_QUIET, False)


@contextlib.contextmanager
def _quiet_threads_unheard() -> Generator[None]:
    logger = tf.get_logger()
    level, ignored = logger.level, ("ignore", _WordsOfQuietThreads(), Warning, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, ignored)
    stdout: Any = _Stdout(sys.stdout)
    logger.setLevel(logging.ERROR)  # "Using MirroredStrategy eagerly has significant overhead".
    try:
        with contextlib.redirect_stdout(stdout):
            yield
    finally:
        logger.setLevel(level)
        with contextlib.suppress(ValueError):  # Where others stand since a `catch_warnings`.
            filters.remove(ignored)


_some_are_quiet = SharedContext(_quiet_threads_unheard)


class _WordsOfQuietThreads:
    """Stands for the regular expression in a filter of warnings, which is asked with each."""

    def match(self, text: str) -> bool:
        """Whether the thread that warns is quiet, whatever it says."""
        return _is_quiet()


class _Stdout:
    """The standard output, to which quiet threads write nothing."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if _is_quiet() else self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def rehearse_whole(model, step, batch, touched) -> rehearsed_run.Rehearsed:
    """Returns what a whole batch does, and what one does that differs from it by rounding."""
    strategy = model.distribute_strategy
    take_own = functools.partial(own_attributes.Snapshot, model)
    size = batches.num_examples(batch)
    copies = [batch, touched] * len(peers.local_replicas(strategy))

    def run(data):
        shares = batches.Shares(
            data=tuple(data), counts=[size] * len(data), total=size, may_be_empty=False
        )
        return rehearsed_run.rehearse(strategy, step, shares, is_whole=True, take_own=take_own)

    count = len(copies) // 2
    # On workers of one replica each in two runs, which all of them make.
    runs = [run(copies[:count])] if count > 1 else [run(copies[:1]), run(copies[1:])]
    updates = [each for run_ in runs for each in run_.updates]
    return dataclasses.replace(runs[0], updates=updates[:2])


@contextlib.contextmanager
def failing_together(strategy) -> Generator[None]:
    """Lets all workers fail where one does: none goes on to messages that it would wait for.

    What is inside sends no message.

    Raises:
        Exception: What was raised inside, on this worker or another one.
    """
    failure = None
    try:
        yield
    except Exception as error:  # Of the program.
        failure = error
    if peers.any_of(strategy, failure is not None):
        raise failure or RuntimeError("The step fails on another worker.")


def try_parts(model, step: Callable, batch) -> None:
    """Runs a step with this worker's parts of a batch alone, to see whether it fails with them."""
    strategy = model.distribute_strategy
    take_own = functools.partial(own_attributes.Snapshot, model)
    if peers.count(strategy) > 1:
        shares = batches.shares_of(batch, strategy)
        rehearsed_run.rehearse(strategy, step, shares, is_whole=True, take_own=take_own)


def finds_nothing(strategy, compare: Callable[[], tuple]) -> bool:
    """Whether a comparison finds no difference, its second result, on any worker; it may fail."""
    try:
        found = bool(compare()[1])
    except Exception:  # Of the program. What was found before is said.
        found = True
    return not peers.any_of(strategy, found)
