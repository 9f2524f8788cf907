"""Things without those that are the same: variables, layers and optimizers cannot be compared."""

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def unique(things: Iterable[_T]) -> list[_T]:
    """Returns each of some things once, in the order in which they first come."""
    return list({id(each): each for each in things}.values())
