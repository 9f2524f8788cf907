"""The table of nets."""

import keras
import numpy as np
import pytest

from models import nets, preprocessing
from models.usage_error import UsageError

SMALL = {"inception_v3": 75, "mobilenet_v2": 32, "resnet_v1_50": 32}


@pytest.mark.parametrize("name", nets.NETS)
def test_every_net_gives_logits_and_bears_its_name(name):
    model = nets.build(name, num_classes=7, weight_decay=4e-5, image_size=SMALL.get(name))

    logits = model(np.zeros((2, *model.input_shape[1:]), "float32"))

    assert model.name == name
    assert logits.shape == (2, 7)
    assert model.layers[-1].activation is keras.activations.linear


@pytest.mark.parametrize("name", nets.NETS)
def test_every_net_has_a_preprocessing(name):
    assert nets.find(name).preprocessing in preprocessing.PREPROCESSINGS


def test_the_images_can_have_other_sizes_and_channels():
    model = nets.build("lenet", num_classes=10, weight_decay=0, image_size=32, channels=3)

    assert model.input_shape == (None, 32, 32, 3)


def test_an_unknown_net_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"'lenett'.*mobilenet_v2.*did you mean 'lenet'\?"):
        nets.build("lenett", num_classes=10, weight_decay=0)
