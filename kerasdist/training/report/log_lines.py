"""Lines about the training, through Python's logging, with the task in front."""

import logging

from kerasdist import launch_note, terminal
from kerasdist.training import peers

_logger = logging.getLogger("kerasdist")


def say(strategy, line: str) -> None:
    """Logs a line at level INFO, as "worker 1: ..." where several tasks run without a launcher.

    A program that has not set up logging sees it on stderr.
    """
    task = peers.task_of(strategy)
    text = launch_note.line_of(task, line) if task else line
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    if _logger.hasHandlers():
        _logger.info("%s", text)
    elif _logger.isEnabledFor(logging.INFO):
        terminal.say(text)
