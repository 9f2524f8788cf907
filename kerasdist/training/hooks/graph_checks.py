"""Checks inside a graph, whose failures become the Python errors that they mean.

TensorFlow reports a failed check as an InvalidArgumentError with the graph's stack in it. A message
made here is found again in that text.
"""

import re

import tensorflow as tf

_PATTERN = re.compile(r"\[kerasdist (\w+)\] (.*?) \[end\]", re.DOTALL)
_CLASSES = {"ValueError": ValueError, "FloatingPointError": FloatingPointError}


def message(error_class: type[Exception], text: str) -> str:
    """Returns the message for a check inside the graph that means `error_class(text)`."""
    return f"[kerasdist {error_class.__name__}] {text} [end]"


def explained(error: Exception) -> Exception:
    """Returns what a check of ours meant, or any other error as it is."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return error
    found = _PATTERN.search(str(error))
    return _CLASSES[found[1]](found[2]) if found else error
