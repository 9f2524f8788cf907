"""How flags name layers."""

import re

import keras
import pytest

from models import layer_scopes, nets
from models.usage_error import UsageError


@pytest.fixture(scope="module")
def model():
    return nets.build("inception_v3", num_classes=3, weight_decay=0.0, image_size=139)


@pytest.mark.parametrize(
    ("scope", "count"),
    [
        ("Logits.Conv2d_1c_1x1", 2),
        ("InceptionV3/Logits", 2),
        ("Logits", 2),
        ("InceptionV3/AuxLogits", 10),
        ("Mixed_7c/Branch_0", 4),
        ("inception_v3/Mixed_7c.Branch_0", 4),
        ("InceptionV3/Logits/Conv2d_1c_1x1/weights", 1),
        ("InceptionV3/Mixed_7c/Branch_0/Conv2d", 4),
        ("Logits.Conv2d_1c", 2),
        # 139 pixels leave the second classifier one position.
        ("InceptionV3/AuxLogits/Conv2d_2a_1x1", 4),
        ("InceptionV3/(Logits|AuxLogits)", 12),
        (".*Logits", 12),
        ("InceptionV3/Mixed_7[^/]+/Branch_0/Conv2d_0a_1x1", 12),
        ("InceptionV3/Mixed_7.*/weights", 24),
    ],
)
def test_scopes_are_layers_or_blocks_also_as_slim_writes_them(scope, count, model):
    [pattern] = layer_scopes.patterns("--trainable_scopes", [scope], model)

    # With the averages of batch normalisation.
    assert sum(bool(re.fullmatch(pattern, each.path)) for each in model.weights) == count


def test_a_layer_of_that_name_is_meant_before_those_that_begin_with_it():
    names = "conv1", "conv10", "fc2"
    net = keras.Sequential(
        [keras.Input([2]), *(keras.layers.Dense(2, name=each) for each in names)]
    )

    def layers_of(scope):
        [pattern] = layer_scopes.patterns("--trainable_scopes", [scope], net)
        return {
            each.path.split("/")[-2] for each in net.weights if re.fullmatch(pattern, each.path)
        }

    assert layers_of("Net/conv1") == {"conv1"}
    assert layers_of("Net/conv") == layers_of("conv") == {"conv1", "conv10"}


def test_an_unknown_one_is_answered_with_the_closest(model):
    message = r"names 'Mixed_7c/Branch_9', .* closest of its \d+ layers are Mixed_7c.Branch_"

    with pytest.raises(UsageError, match=message):
        layer_scopes.patterns("--trainable_scopes", ["Mixed_7c/Branch_9"], model)


def test_one_that_leaves_nothing_out_is_told(model, capsys):
    scopes = ["InceptionV3/Logits", "InceptionV3/Extra(", "InceptionV3/AuxLogits"]

    patterns = layer_scopes.patterns_of_some("--checkpoint_exclude_scopes", scopes, model)

    assert len(patterns) == 2
    told = capsys.readouterr().out
    assert told.startswith("Warning: --checkpoint_exclude_scopes names 'InceptionV3/Extra(', but")
    assert told.count("\n") == 1
