"""The table of nets."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

from models import nets, preprocessing
from models.usage_error import UsageError

# Of 1,000 classes, without second classifiers: the sums of slim's own layers. Those of Inception v1
# to v3 are what slim's tests expect, those of ResNet, MobileNet and Inception-ResNet what
# keras.applications has (ResNet v1 there has biases, too), that of v4 is the published one.
NUM_PARAMETERS = {
    "cifarnet": 1_947_496,
    "lenet": 4_289_384,
    "mobilenet_v3_large": 5_507_432,
    "mobilenet_v3_large_minimalistic": 3_948_688,
    "mobilenet_v3_small": 2_554_968,
    "mobilenet_v3_small_minimalistic": 2_056_848,
    "nasnet_large": 88_949_818,
    "nasnet_mobile": 5_326_716,
    "alexnet_v2": 50_303_912,
    "inception_resnet_v2": 55_873_736,
    "inception_v1": 5_607_184 + 1_025_000,
    "inception_v2": 10_173_112 + 1_025_000,
    "inception_v3": 21_802_784 + 2_049_000,
    "inception_v4": 42_679_816 + 31_584,
    "mobilenet_v1": 4_253_864,
    "mobilenet_v1_025": 475_544,
    "mobilenet_v1_050": 1_342_536,
    "mobilenet_v1_075": 2_601_976,
    "mobilenet_v2": 3_538_984,
    "mobilenet_v2_035": 1_691_208,
    "mobilenet_v2_140": 6_156_712,
    "overfeat": 145_704_424,
    "resnet_v1_101": 44_707_176 - 52_672,
    "resnet_v1_152": 60_419_944 - 75_712,
    "resnet_v1_200": 64_849_832,
    "resnet_v1_50": 25_610_152,
    "resnet_v2_101": 44_675_560,
    "resnet_v2_152": 60_380_648,
    "resnet_v2_200": 64_894_440,
    "resnet_v2_50": 25_613_800,
    "vgg_16": 138_357_544,
    "vgg_19": 143_667_240,
    "vgg_a": 132_863_336,
}
# Small images for nets that take them; those of the first kinds need no more than 32 pixels.
SMALL = {"inception_v1": 32, "inception_v2": 32, "mobilenet": 32, "resnet": 32, "nasnet": 32}
SMALL |= {"inception": 75}
# More of the same blocks.
DEEP = ("_101", "_152", "_200", "nasnet_large", "vgg_16", "vgg_19", "_minimalistic")
# Of other sizes, or built in test_slim_nets.py as well.
FURTHER = {
    *("inception_v2", "inception_v3", "inception_v4"),
    *("mobilenet_v1", "mobilenet_v1_075", "mobilenet_v2", "mobilenet_v2_035"),
    "mobilenet_v3_large",
}
QUICK = ("cifarnet", "inception_v1", "lenet", "mobilenet_v1_025", "resnet_v1_50")


def size_of(name):
    return next((size for start, size in SMALL.items() if name.startswith(start)), None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.thorough] * (name not in QUICK)
            + [pytest.mark.exhaustive] * (name.endswith(DEEP) or name in FURTHER),
        )
        for name in nets.NETS
    ],
)
def test_every_net_has_its_parameters_gives_logits_and_bears_its_name(name):
    model = nets.build(name, num_classes=1000, weight_decay=4e-5, image_size=size_of(name))
    rng = np.random.default_rng(0)

    logits = model(rng.normal(size=(2, *model.input_shape[1:])).astype("float32"))

    assert model.count_params() == NUM_PARAMETERS[name]
    assert model.name == name
    assert logits.shape == (2, 1000)
    # Probabilities would add up to one.
    assert np.abs(np.sum(logits, axis=-1) - 1).max() > 0.001
    keras.utils.clear_session()


def test_the_documentation_has_a_row_for_each():
    text = (Path(__file__).parents[3] / "docs/application.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+).* \| ([\d,]+) \| (\w+) \|", text, re.MULTILINE)

    expected = {
        name: (str(net.image_size), f"{NUM_PARAMETERS[name]:,}", net.preprocessing)
        for name, net in nets.NETS.items()
    }
    assert {name: tuple(others) for name, *others in rows} == expected


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
        # Of later versions.
        *(
            f"mobilenet_v3_{size}{kind}"
            for size in ("large", "small")
            for kind in ("", "_minimalistic")
        ),
        *("mobilenet_edgetpu", "mobilenet_edgetpu_075"),
    }

    assert len(names) == 34 + 6
    assert names == {*nets.NETS, *nets.ABSENT}


@pytest.mark.parametrize("name", nets.ABSENT)
def test_a_net_that_is_not_available_says_why(name):
    with pytest.raises(UsageError, match=f"'{name}' is not available: {nets.ABSENT[name]}"):
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
