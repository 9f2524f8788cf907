"""Text in columns."""

from collections.abc import Collection, Sequence


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
