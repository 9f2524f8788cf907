"""The table of nets."""

import keras
import numpy as np
import pytest

from models import nets, preprocessing
from models.usage_error import UsageError

# Small images for nets that take them; those of the first kind need no more than 32 pixels.
SMALL = {"inception_v1": 32, "inception_v2": 32, "mobilenet": 32, "resnet": 32, "nasnet": 32}
SMALL |= {"inception": 75}
MANY_LAYERS = ("nasnet_large", "resnet_v1_200", "resnet_v2_200")


def size_of(name):
    return next((size for start, size in SMALL.items() if name.startswith(start)), None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if name in MANY_LAYERS else [])
        for name in nets.NETS
    ],
)
def test_every_net_gives_logits_and_bears_its_name(name):
    model = nets.build(name, num_classes=7, weight_decay=4e-5, image_size=size_of(name))
    rng = np.random.default_rng(0)

    logits = model(rng.normal(size=(2, *model.input_shape[1:])).astype("float32"))

    assert model.name == name
    assert logits.shape == (2, 7)
    # Probabilities would add up to one.
    assert np.abs(np.sum(logits, axis=-1) - 1).max() > 0.001
    keras.utils.clear_session()


def test_all_names_of_slim_are_here_or_answered():
    widths = {"mobilenet_v1": ("075", "050", "025"), "mobilenet_v2": ("140", "035")}
    names = {
        *("alexnet_v2", "cifarnet", "overfeat", "vgg_a", "vgg_16", "vgg_19", "i3d", "s3dg"),
        *(f"inception_v{version}" for version in (1, 2, 3, 4)),
        *("inception_resnet_v2", "lenet", "nasnet_cifar", "nasnet_mobile", "nasnet_large"),
        *("pnasnet_large", "pnasnet_mobile"),
        *(f"resnet_v{v}_{depth}" for v in (1, 2) for depth in (50, 101, 152, 200)),
        *widths,
        *(f"{name}_{width}" for name, found in widths.items() for width in found),
    }

    assert len(names) == 34
    assert names == {*nets.NETS, *nets.ABSENT}


@pytest.mark.parametrize("name", nets.ABSENT)
def test_a_net_that_is_not_here_says_why(name):
    with pytest.raises(UsageError, match=f"'{name}' is not here: {nets.ABSENT[name]}"):
        nets.find(name)


@pytest.mark.parametrize("name", nets.NETS)
def test_every_net_has_a_preprocessing(name):
    assert nets.find(name).preprocessing in preprocessing.PREPROCESSINGS


def test_the_images_can_have_other_sizes_and_channels():
    model = nets.build("lenet", num_classes=10, weight_decay=0, image_size=32, channels=3)

    assert model.input_shape == (None, 32, 32, 3)


def test_an_unknown_net_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"'lenett'.*mobilenet_v2.*did you mean 'lenet'\?"):
        nets.build("lenett", num_classes=10, weight_decay=0)
