"""CifarNet is slim's."""

import keras
import numpy as np

from models import nets


def test_cifarnet_has_the_parameters_of_slims():
    model = nets.build("cifarnet", num_classes=10, weight_decay=0)

    convolutions = (5 * 5 * 3 * 64 + 64) + (5 * 5 * 64 * 64 + 64)
    dense = (8 * 8 * 64 * 384 + 384) + (384 * 192 + 192) + (192 * 10 + 10)
    assert model.count_params() == convolutions + dense


def test_only_the_two_hidden_dense_layers_are_regularised():
    model = nets.build("cifarnet", num_classes=10, weight_decay=0.004)

    layers = [layer.name for layer in model.layers if getattr(layer, "losses", None)]
    assert layers == ["fc3", "fc4"]


def test_a_saved_cifarnet_loads_and_gives_the_same_logits(tmp_path):
    model = nets.build("cifarnet", num_classes=10, weight_decay=0.004)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    np.testing.assert_allclose(loaded(images), model(images), rtol=1e-6)
