"""Workers that do not run the same program: one clear error on each of them."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import callbacks
from tests import fork_server
from tests.strategies import run_on_workers

pytestmark = pytest.mark.processes


def differ(strategy) -> list[str]:
    """Returns what a worker is told, for one difference after the other."""
    index = kerasdist.Cluster.from_env().worker_index
    x, y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")

    def told(optimizer="sgd", loss="mse", activation=None, shift=0.0, **arguments):
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation)])
            model.compile(optimizer, loss)
        model.set_weights([each + shift for each in model.get_weights()])
        try:
            model.fit(x, y, batch_size=8, verbose=0, **arguments)
        except ValueError as error:
            return str(error)
        return ""

    momentum = keras.optimizers.SGD(0.1, momentum=0.5 * index)
    clip = [callbacks.GradientClipping(norm=1.0)] if index else []
    return [
        told(epochs=2 + index),
        told(optimizer=momentum),
        told(callbacks=clip),
        told(loss="mae" if index else "mse"),
        told(activation="relu" if index else "tanh"),
        told(shift=0.1 * index),
        told(epochs=2),
    ]


def test_calls_of_fit_that_differ_are_refused_and_the_next_one_trains():
    first, second = run_on_workers(differ, "2 workers")

    assert first == second
    epochs, momentum, clip, loss, activation, weights, none = first
    assert "epochs is 2 on worker 0, 3 on worker 1" in epochs
    assert "optimizer's momentum is 0.0 on worker 0, 0.5 on worker 1" in momentum
    assert "callbacks of the update is empty on worker 0, GradientClipping on worker 1" in clip
    assert "loss is mse on worker 0, mae on worker 1" in loss
    assert "activation of layer 0 (Dense) is tanh on worker 0, relu on worker 1" in activation
    assert "begin `fit` with different weights: 'sequential_5/dense_5/kernel', 'seq" in weights
    assert none == ""


def build_another_model():
    strategy = kerasdist.make_strategy()
    index = kerasdist.Cluster.from_env().worker_index
    with strategy.scope():
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(4 + index, name="hidden")])


class WidthOfItsOwn(keras.layers.Layer):
    """A layer whose settings do not say how it is built."""

    def build(self, shape):
        units = 4 + kerasdist.Cluster.from_env().worker_index
        self.kernel = self.add_weight(shape=(shape[-1], units), name="kernel")

    def call(self, x):
        return x @ self.kernel


def build_another_model_in_fit():
    strategy = kerasdist.make_strategy()
    index = kerasdist.Cluster.from_env().worker_index
    with strategy.scope():
        model = keras.Sequential([WidthOfItsOwn()])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 4 + index)), verbose=0)


@pytest.mark.parametrize(
    ("build", "name"),
    [(build_another_model, "hidden/kernel"), (build_another_model_in_fit, "kernel")],
)
def test_models_that_differ_are_refused_where_they_part(build, name):
    results = fork_server.run_cluster(build, num_workers=2)

    told = "".join(result.output for result in results)
    assert f"They part at the variable '{name}': [3,4] on the task of index 0, " in told or (
        f"They part at the variable '{name}': [3,5] on the task of index 1, " in told
    )
    assert all(result.exit_code for result in results)
