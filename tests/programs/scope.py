"""The one line that a published program needs: the scope of a strategy."""

import contextlib


def scope(strategy):
    """Returns the scope of `strategy`, or for None one that changes nothing: plain Keras."""
    return strategy.scope() if strategy else contextlib.nullcontext()


def epsilon(comparable: bool) -> float:
    """Returns an epsilon of Adam's: its default, or one beside which rounding is small.

    Adam makes as large a step of a gradient that is all rounding as of any other.
    """
    return 0.1 if comparable else 1e-7
