"""Local response normalisation against its formula."""

import numpy as np

from models.nets.local_response_normalization import LocalResponseNormalization


def test_each_value_is_divided_by_its_neighbours_across_channels():
    x = np.arange(12, dtype="float32").reshape(1, 1, 1, 12)
    layer = LocalResponseNormalization(2, bias=1.0, alpha=0.5, beta=0.75)

    expected = [
        x[..., i] / (1 + 0.5 * np.square(x[..., max(i - 2, 0) : i + 3]).sum()) ** 0.75
        for i in range(12)
    ]

    np.testing.assert_allclose(np.ravel(layer(x)), np.ravel(expected), rtol=1e-5)
