"""Deduplicate things by identity, or give each a name of its own."""

import collections
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def unique(things: Iterable[_T]) -> list[_T]:
    """Returns each of some things once, in the order in which they first come."""
    return list({id(each): each for each in things}.values())


def by_unique_name(things: Iterable[_T], name_of: Callable[[_T], str]) -> dict[str, _T]:
    """Returns things by their names; the later ones with the same name get a number: "dense#2"."""
    seen = collections.Counter()
    named = {}
    for thing in things:
        name = name_of(thing)
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}#{seen[name]}"] = thing
    return named
