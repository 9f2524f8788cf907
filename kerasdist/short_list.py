"""Some names in a message: the first few, and a sign that there are more."""

from collections.abc import Iterable


def short_list(names: Iterable[object], most: int, *, separator: str = ", ") -> str:
    """Returns the first `most` names, and "..." if there are more: "dense, dense_1, ..."."""
    names = [str(name) for name in names]
    return separator.join([*names[:most], *(["..."] if len(names) > most else [])])
