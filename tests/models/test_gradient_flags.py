"""Flags that change gradients."""

import pytest
from absl import flags

from kerasdist.callbacks import GradientClipping, GradientMultipliers
from models import nets
from models.training import gradient_flags
from models.usage_error import UsageError


def build(*argv):
    values = flags.FlagValues()
    gradient_flags.define_flags(values)
    values(["", *argv])
    model = nets.build("lenet", num_classes=10, weight_decay=0.0)
    return gradient_flags.build(values, model)


def test_slims_order_is_multipliers_and_then_clipping():
    multipliers, clipping = build(
        "--gradient_multipliers=fc4=10, conv1=0.5", "--clip_gradient_norm=4"
    )

    assert isinstance(multipliers, GradientMultipliers)
    assert [factor for _, factor in multipliers.multipliers] == [10.0, 0.5]
    assert isinstance(clipping, GradientClipping)
    assert (clipping.mode, clipping.limit) == ("norm", 4.0)
    assert build() == []


@pytest.mark.parametrize("text", ["logits", "logits=", "=2", "logits=x", "logits=nan"])
def test_what_is_no_pair_is_shown(text):
    with pytest.raises(UsageError, match=f"takes layer=factor.*Received: '{text}'"):
        build(f"--gradient_multipliers={text}")


@pytest.mark.parametrize("text", ["conv1=1,conv1=2", "conv1=1,LeNet/conv1=1"])
def test_a_layer_with_two_factors_is_refused(text):
    with pytest.raises(UsageError, match="--gradient_multipliers names 'conv1' twice"):
        build(f"--gradient_multipliers={text}")


def test_a_layer_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(UsageError, match=r"--gradient_multipliers names 'fc5', .* conv1, conv2"):
        build("--gradient_multipliers=fc5=2")
