"""Lines about the training, through Python's logging, with the task in front."""

import logging

from kerasdist import terminal
from kerasdist.training import peers

_logger = logging.getLogger("kerasdist")


def say(strategy, line: str) -> None:
    """Logs a line at level INFO, as "worker 1: ..." where there are several tasks.

    A program that has not set up logging sees it on stderr.
    """
    task = peers.task_of(strategy)
    text = f"{task}: {line}" if task else line
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    if _logger.hasHandlers():
        _logger.info("%s", text)
    elif _logger.isEnabledFor(logging.INFO):
        terminal.say(text)
