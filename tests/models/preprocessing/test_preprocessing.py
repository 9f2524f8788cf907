"""The table of preprocessings."""

import pytest

from models import preprocessing
from models.usage_error import UsageError


def test_an_unknown_preprocessing_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"--preprocessing_name 'lent'.*did you mean 'lenet'\?"):
        preprocessing.find("lent")


@pytest.mark.parametrize(("net", "name"), [("inception_v3", "inception"), ("resnet_v1_50", "vgg")])
def test_the_name_of_a_net_is_that_of_its_preprocessing(net, name):
    assert preprocessing.find(net) is preprocessing.PREPROCESSINGS[name]
