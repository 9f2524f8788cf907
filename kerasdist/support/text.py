"""Words, lists and columns of messages."""

import difflib
from collections.abc import Collection, Iterable, Sequence


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns "1 step" or "1,437 steps".

    Args:
        number: How many there are.
        one: What one of them is called.
        several: What others are called; `one` with an s by default.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def short_list(names: Iterable[object], most: int, *, separator: str = ", ") -> str:
    """Returns the first `most` names, and "..." if there are more: "dense, dense_1, ..."."""
    names = [str(name) for name in names]
    return separator.join([*names[:most], *(["..."] if len(names) > most else [])])


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns a question for the end of a message, or "" if no known word is close.

    Args:
        word: What the user wrote.
        known: What it may have been.
        cutoff: How similar the two must be, from 0 to 1.
    """
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return f' Did you mean "{close[0]}"?' if close else ""


def printable(text: str) -> str:
    """Returns what came from outside without what would steer a terminal."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


def in_columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Returns rows of cells as lines, in which each column is as wide as its longest cell.

    Args:
        rows: Cells, equally many in each.
        right: Which columns, from 0, are aligned on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
