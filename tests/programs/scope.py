"""The one line that a published program needs: the scope of a strategy."""

import contextlib


def scope(strategy):
    """Returns the scope of `strategy`, or for None one that changes nothing: plain Keras."""
    return strategy.scope() if strategy else contextlib.nullcontext()
