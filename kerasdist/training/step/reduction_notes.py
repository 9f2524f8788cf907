"""Hides TensorFlow's notes of every reduction: a dozen lines per `fit` in a notebook.

Nothing is lost with them: `plan_training` says what is reduced, and how.
"""

import logging
import re

import tensorflow as tf

from kerasdist.private import names, strategy_adapter

_NOTE = re.compile(
    r"(Reduce|Gather) to .* then broadcast to |batch_all_reduce: |Collective (batch_)?all_"
)


def hide() -> None:
    """Keeps these notes out of TensorFlow's log, and no others, for our strategies alone."""
    names.filter_log(_is_told)


def _is_told(record: logging.LogRecord) -> bool:
    is_note = record.levelname == "INFO" and _NOTE.match(record.getMessage())
    return not (is_note and strategy_adapter.is_adapted(tf.distribute.get_strategy()))
