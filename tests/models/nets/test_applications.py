"""What is changed in the nets of keras.applications."""

import keras
import numpy as np
import pytest

from models import nets


@pytest.fixture(scope="module")
def model():
    return nets.build("nasnet_mobile", num_classes=7, weight_decay=0.01, image_size=32)


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


@pytest.mark.exhaustive  # As in test_slim_nets.py.
def test_kernels_are_regularised_and_depthwise_kernels_are_not(model):
    regularised = layers_of(model, keras.layers.Conv2D | keras.layers.Dense)

    expected = 0.01 * sum(np.square(layer.kernel.numpy()).sum() for layer in regularised) / 2
    assert layers_of(model, keras.layers.SeparableConv2D)
    assert len(model.losses) == len(regularised)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.exhaustive  # As in test_slim_nets.py.
def test_batch_normalisation_uses_the_global_batch(model):
    layers = layers_of(model, keras.layers.BatchNormalization)

    assert layers
    assert all(layer.synchronized for layer in layers)
