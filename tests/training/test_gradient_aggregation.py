"""The update with the gradient of the global batch: what it leaves behind."""

import keras
import numpy as np

from kerasdist.training import gradient_aggregation
from tests import strategies


def test_an_update_lets_go_of_its_optimizer_and_gradients():
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)

    assert vars(gradient_aggregation._local) == {}
