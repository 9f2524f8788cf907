"""A training on synchronous workers of parameter servers that is interrupted goes on exactly."""

import functools
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import Checkpoint
from tests import strategies

NUM_EXAMPLES = 26
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))
_SIZE = 4  # 7 batches, of which two workers make 4 updates.


class Interrupted(Exception):
    """A program is killed."""


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` after some updates."""

    def __init__(self, num_updates):
        super().__init__()
        self.left = num_updates

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


def examples():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled():
    return {"x": examples().shuffle(NUM_EXAMPLES).batch(_SIZE), "epochs": 3}


def arrays():
    return {"x": X, "y": Y, "batch_size": _SIZE, "epochs": 3}


def over_short_epochs():
    return {**shuffled(), "epochs": 5, "steps_per_epoch": 3}


# After updates in the middle of the second epoch, or of the third, which begins the data anew.
CASES = {
    "shuffled": (shuffled, 6),
    "arrays": (arrays, 10),
    "over short epochs": (over_short_epochs, 5),
    "over short epochs, begun anew": (over_short_epochs, 8),
}


def train(strategy, make_data, *callbacks):
    """Returns the weights and the logs of a new model."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    history = model.fit(**make_data(), verbose=0, callbacks=list(callbacks)).history
    return [*model.get_weights(), *history.values()]


def outcomes_of(name, strategy, folder):
    """Returns what a training gives that nobody interrupts, and one that goes on."""
    make_data, num_updates = CASES[name]
    checkpoints = functools.partial(Checkpoint, folder / name, every_steps=1)
    try:
        expected = train(strategy, make_data)
        with pytest.raises(Interrupted):
            train(strategy, make_data, checkpoints(), Interrupt(num_updates))
        checkpoint = checkpoints()
        found = train(strategy, make_data, checkpoint)
        assert checkpoint.resumed_from
        return found, expected
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


def all_outcomes(folder, strategy):
    return {name: outcomes_of(name, strategy, folder) for name in CASES}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What all cases give in one cluster."""
    (workers,) = strategies.SYNCHRONOUS
    program = functools.partial(all_outcomes, tmp_path_factory.mktemp("runs"))
    (outcomes,) = strategies.run_on_workers(program, workers)
    return outcomes


@pytest.mark.processes
@pytest.mark.timeout(300)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_as_if_nothing_had_been(name, outcomes):
    assert not isinstance(outcomes[name], str), outcomes[name]
    for ours, theirs in zip(*outcomes[name], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
