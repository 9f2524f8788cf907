"""Lines about the training, through Python's logging, with the task in front."""

import logging

from kerasdist.training import peers

_logger = logging.getLogger("kerasdist")


def say(strategy, line: str) -> None:
    """Logs a line at level INFO, as "worker 1: ..." where there are several tasks.

    A program that has not set up logging sees it on stderr.
    """
    if not _logger.hasHandlers():
        _logger.addHandler(logging.StreamHandler())
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)
    cluster = peers.cluster_of(strategy)
    _logger.info("%s", line if cluster.is_local else f"{cluster.task}: {line}")
