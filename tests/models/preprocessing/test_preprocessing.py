"""The table of preprocessings."""

import pytest

from models import preprocessing
from models.usage_error import UsageError


def test_an_unknown_preprocessing_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"--preprocessing_name 'lent'.*did you mean 'lenet'\?"):
        preprocessing.find("lent")
