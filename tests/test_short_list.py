"""kerasdist.short_list: the first few names of a message."""

from kerasdist.short_list import short_list


def test_it_shows_the_first_few_and_whether_there_are_more():
    assert short_list([], 2) == ""
    assert short_list(["a", "b"], 2) == "a, b"
    assert short_list(iter("abc"), 2) == "a, b, ..."
    assert short_list([1, 2, 3], 1, separator="; ") == "1; ..."
