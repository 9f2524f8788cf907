"""Variables by their paths: which are meant, and what is said where none is."""

import types

import pytest

from kerasdist import patterns


def variable(path="kernel"):
    return types.SimpleNamespace(path=path)  # A real one would start TensorFlow.


def test_an_expression_matches_the_whole_path_and_a_variable_itself():
    kernel = variable()

    assert patterns.matches("ker.*", kernel)
    assert not patterns.matches("ker", kernel)
    assert patterns.matches(kernel, kernel)
    assert not patterns.matches(variable("bias"), kernel)


def test_of_variables_with_one_path_all_but_the_first_get_a_number():
    named = [variable("a"), variable("b"), variable("a")]

    assert patterns.by_unique_path(named) == dict(zip(("a", "b", "a#2"), named, strict=True))


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        (3, TypeError, "^`scopes` must hold regular expressions. Received: 3 of type int.$"),
        ("(", ValueError, r"^`scopes` holds '\(', which is not a regular expression: "),
    ],
)
def test_what_is_no_expression_is_named(pattern, error, message):
    with pytest.raises(error, match=message):
        patterns.check_expression("scopes", pattern)


def test_what_matches_nothing_is_told_with_what_is_close():
    patterns.check_matches_something("scopes", "ker.*", [variable()])

    with pytest.raises(ValueError, match=r"'kernl' in `scopes` matches no trainable.*: kernel, b"):
        patterns.check_matches_something("scopes", "kernl", [variable("b"), variable()])


def test_a_name_that_matches_nothing_where_there_are_none():
    with pytest.raises(ValueError, match=r"'loss' in `losses` .* Closest: there are none\."):
        patterns.check_matches_a_name("losses", "loss", [])
