"""The message for a name that is not known."""

import pytest

from models.usage_error import UsageError, check_name


def test_a_typo_gets_the_valid_names_and_the_closest_one():
    with pytest.raises(UsageError) as raised:
        check_name("--model_name", "lenett", ["lenet", "cifarnet"])

    assert str(raised.value) == (
        "Unknown --model_name 'lenett'. Valid names: cifarnet, lenet; did you mean 'lenet'?"
    )


def test_a_name_that_is_close_to_none_gets_no_guess():
    with pytest.raises(UsageError, match=r"Valid names: adam, sgd\.$"):
        check_name("--optimizer", "xyz", ["sgd", "adam"])


def test_a_valid_name_passes():
    check_name("--optimizer", "sgd", ["sgd", "adam"])
