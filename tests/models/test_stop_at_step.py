"""Training ends after an exact number of steps."""

import keras
import numpy as np
import pytest

from models.stop_at_step import StopAtStep


@pytest.mark.parametrize("last_step", [1, 4, 6])
def test_fit_makes_exactly_so_many_steps(last_step):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stop_at_step = StopAtStep(last_step)

    x = np.zeros((8, 1))
    model.fit(x, x, batch_size=2, epochs=3, verbose=0, callbacks=[stop_at_step])

    assert int(model.optimizer.iterations) == stop_at_step.step == last_step
