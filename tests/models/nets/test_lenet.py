"""LeNet is slim's."""

import numpy as np
import pytest

from models import nets


def test_lenet_has_the_parameters_of_slims():
    model = nets.build("lenet", num_classes=10, weight_decay=0)

    convolutions = (5 * 5 * 1 * 32 + 32) + (5 * 5 * 32 * 64 + 64)
    dense = (7 * 7 * 64 * 1024 + 1024) + (1024 * 10 + 10)
    assert model.count_params() == convolutions + dense
    assert model.losses == []


def test_weight_decay_adds_half_the_sum_of_squares_of_every_kernel():
    model = nets.build("lenet", num_classes=10, weight_decay=0.01)

    kernels = [w.numpy() for w in model.trainable_weights if w.name == "kernel"]
    expected = 0.01 * sum(np.square(kernel).sum() for kernel in kernels) / 2
    assert len(kernels) == 4
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-4)


def test_kernels_start_truncated_at_two_standard_deviations_of_a_tenth():
    kernel = nets.build("lenet", num_classes=10, weight_decay=0).get_layer("fc3").kernel.numpy()

    assert np.abs(kernel).max() < 0.1 * 2 / 0.87  # Keras rescales to the full deviation.
    assert kernel.std() == pytest.approx(0.1, rel=0.15)
