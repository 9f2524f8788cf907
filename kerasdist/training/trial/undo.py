"""Undo what steps leave behind, those of a trial and whole ones, and what they say meanwhile."""

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_threads, trial_adapter
from kerasdist.support.shared_context import SharedContext
from kerasdist.training.context import peers
from kerasdist.training.gradients import randomness
from kerasdist.training.replica import custom_attributes
from kerasdist.training.trial.watched_step import copies_of, slots_of

# Among what Keras keeps for a thread, which those of its replicas inherit.
_SILENT = "kerasdist_is_silent"


@contextlib.contextmanager
def without_traces(model: keras.Model) -> Generator[None]:
    """Runs what is inside operation by operation, and leaves no trace of it."""
    with (
        _silent(),
        # What is traced here would be found again in the steps that count.
        trial_adapter.functions_run_eagerly(),
        tf.summary.record_if(False),
        custom_attributes.kept(model),
        randomness.generators_kept(),
    ):
        yield


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Swallows what this thread, and those of its replicas, print and warn of."""
    thread = keras_threads.thread_state()
    with _some_are_silent:
        before, thread[_SILENT] = _is_silent(), True
        try:
            yield
        finally:
            thread[_SILENT] = before


def _is_silent() -> bool:
    return keras_threads.thread_state().get(_SILENT, False)


@contextlib.contextmanager
def _silent_threads_unheard() -> Generator[None]:
    logger = tf.get_logger()
    level, ignored = logger.level, ("ignore", _WordsOfSilentThreads(), Warning, None, 0)
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


_some_are_silent = SharedContext(_silent_threads_unheard)


class _WordsOfSilentThreads:
    """Stands for the regular expression in a filter of warnings, which is asked with each."""

    def match(self, text: str) -> bool:
        """Whether the thread that warns is silent, whatever it says."""
        return _is_silent()


class _Stdout:
    """The standard output, to which silent threads write nothing."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if _is_silent() else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def failing_together(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Lets all workers fail where one does: none goes on to messages that it would wait for.

    What is inside sends no message.

    Raises:
        Exception: What was raised inside, on this worker or another one.
    """
    failure = None
    try:
        yield
    except Exception as error:  # The program may raise anything; it is raised below on all workers.  # noqa: BLE001
        failure = error
    if peers.any_of(strategy, failure is not None):
        raise failure or RuntimeError("The step fails on another worker.")


@contextlib.contextmanager
def state_kept(model: keras.Model) -> Generator[None]:
    """Puts everything back that steps inside change: weights, slots, metrics, random numbers.

    Slots and metrics that the first step makes get the values that they were made with. What the
    user's own layers, metrics and optimizers keep in Python is put back as in a trial.
    """
    strategy = model.distribute_strategy
    metrics = {id(metric) for metric in custom_parts.metrics_of(model)}
    kept = {id(copy): (copy, copy.numpy()) for copy in _state_of(model)}

    def create(next_creator: Callable, **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        if tf.executing_eagerly():  # Else, as for metrics, its value is part of the trace.
            copies = strategy.experimental_local_results(variable)
            kept.update({id(copy): (copy, copy.numpy()) for copy in copies})
        return variable

    try:
        with (
            randomness.generators_kept(),
            custom_attributes.kept(model),
            tf.variable_creator_scope(create),
        ):
            yield
    finally:
        for metric in custom_parts.metrics_of(model):
            if id(metric) not in metrics:
                metric.reset_state()
        for copy, value in kept.values():
            copy.assign(value)


def _state_of(model: keras.Model) -> list:
    """Returns TensorFlow's variables that a step of a model may change."""
    metrics = [each for metric in custom_parts.metrics_of(model) for each in metric.variables]
    generator = keras_threads.known_global_seed_generator()
    seeds = [generator.state] if generator else []
    variables = [*model.variables, *metrics, *slots_of(model), *seeds]
    return [copy for variable in variables for copy in copies_of(model, variable)]
