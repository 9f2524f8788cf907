"""Lines whose cells stand one below the other."""

from kerasdist.columns import in_columns


def test_columns_are_as_wide_as_their_longest_cells():
    rows = [("name", "size"), ("kernel", "9"), ("b", "")]

    assert in_columns(rows, right=[1]) == ["name    size", "kernel     9", "b"]
    assert in_columns(rows) == ["name    size", "kernel  9", "b"]


def test_no_rows_are_no_lines():
    assert in_columns([]) == []
