"""Carries an error of one task to another one, as text.

So all of them can catch the same error: an OSError on the chief is one on every worker.
"""

import builtins
import json

import tensorflow as tf

# They cannot be made from a text alone.
_OTHERS = (UnicodeError, BaseExceptionGroup)


def to_text(error: BaseException, told: str) -> str:
    """Returns what `from_text` reads.

    Args:
        error: What happened here.
        told: The message on the other task.
    """
    if isinstance(error, tf.errors.OpError):
        return json.dumps(["OpError", error.error_code, told])
    kind = next(
        kind
        for kind in type(error).__mro__
        if kind.__module__ == "builtins" and not issubclass(kind, _OTHERS)
    )
    # It decides which subclass of OSError it becomes.
    number = error.errno if isinstance(error, OSError) else None
    return json.dumps([kind.__name__, number if isinstance(number, int) else None, told])


def from_text(text: str) -> BaseException:
    """Returns an error of the same kind as the one on the other task."""
    kind, number, told = json.loads(text)
    if kind == "OpError":
        return tf.compat.v1.errors.exception_type_from_error_code(number)(None, None, told)
    make = getattr(builtins, kind)
    return make(told) if number is None else make(number, told)
