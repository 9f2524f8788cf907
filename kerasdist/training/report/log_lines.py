"""Logs lines about the training, prefixed with the task."""

import logging

import tensorflow as tf

from kerasdist.support import launch_note, terminal
from kerasdist.training.context import peers

_logger = logging.getLogger("kerasdist")


def say(strategy: tf.distribute.Strategy | None, line: str) -> None:
    """Logs a line at level INFO, as "worker 1: ..." if several tasks run without a launcher.

    A program that has not set up logging sees it on stderr. One that wants no such lines sets the
    level of the logger "kerasdist"; that of the root is not asked.
    """
    say_as(peers.task_of(strategy), line)


def say_as(task: object | None, line: str) -> None:
    """Does the same for a task of a cluster, or without one for None."""
    text = launch_note.line_of(task, line) if task else line
    # At the root, any library that warns sets up logging at level WARNING, as absl does for Keras.
    # The lines, which the user has asked for with a callback, must not end in the middle of a run.
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    terminal.begin_line()
    if _logger.hasHandlers():
        _logger.info("%s", text)
    elif _logger.isEnabledFor(logging.INFO):
        terminal.say(text)
