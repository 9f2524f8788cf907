"""Checks inside a graph end as the Python errors that they mean."""

import pytest
import tensorflow as tf

from kerasdist.training.hooks import graph_checks


def test_a_message_from_the_graph_becomes_the_error_it_was_meant_to_be():
    text = f"assertion failed: [{graph_checks.message(FloatingPointError, 'NaN in it.')}] [Op:x]"

    told = graph_checks.explained(tf.errors.InvalidArgumentError(None, None, text))

    assert type(told) is FloatingPointError
    assert str(told) == "NaN in it."


@pytest.mark.parametrize(
    "error", [tf.errors.InvalidArgumentError(None, None, "of another"), ValueError("of a program")]
)
def test_any_other_error_stays_what_it_is(error):
    assert graph_checks.explained(error) is error
