"""Words, lists and columns of messages."""

from kerasdist.support.text import counted, in_columns, short_list


def test_one_is_in_the_singular():
    assert [counted(number, "step") for number in (0, 1, 1437)] == [
        "0 steps",
        "1 step",
        "1,437 steps",
    ]
    assert [counted(number, "copy", "copies") for number in (1, 2)] == ["1 copy", "2 copies"]


def test_it_shows_the_first_few_and_whether_there_are_more():
    assert short_list([], 2) == ""
    assert short_list(["a", "b"], 2) == "a, b"
    assert short_list(iter("abc"), 2) == "a, b, ..."
    assert short_list([1, 2, 3], 1, separator="; ") == "1; ..."


def test_columns_are_as_wide_as_their_longest_cells():
    rows = [("name", "size"), ("kernel", "9"), ("b", "")]

    assert in_columns(rows, right=[1]) == ["name    size", "kernel     9", "b"]
    assert in_columns(rows) == ["name    size", "kernel  9", "b"]


def test_no_rows_are_no_lines():
    assert in_columns([]) == []
