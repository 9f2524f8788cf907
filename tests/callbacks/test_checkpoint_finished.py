"""A training that is started again when it is finished: its callbacks know what they knew."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint, MovingAverage
from kerasdist.parity.data import examples
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy


class Count(keras.callbacks.Callback):
    """Counts epochs, and what comes after them."""

    def __init__(self):
        super().__init__()
        self.num_epochs = self.num_ends = 0

    def on_epoch_end(self, epoch, logs=None):
        self.num_epochs += 1

    def on_train_end(self, logs=None):
        self.num_ends += 1

    def get_state(self):
        return {"epochs": np.array(self.num_epochs), "ends": np.array(self.num_ends)}

    def set_state(self, state):
        self.num_epochs, self.num_ends = int(state["epochs"]), int(state["ends"])


def run(strategy, folder, *, is_first, num_fits=1):
    """Trains for an epoch or two, and returns what a program prints of its callbacks."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(2.0), "mse")
    told = []
    for _ in range(num_fits):
        count, average = Count(), MovingAverage(0.5)
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
        best = keras.callbacks.ModelCheckpoint(folder / "best.keras", "loss", save_best_only=True)
        others = [count, average, stopping, best]
        checkpoint = Checkpoint(folder / "checkpoints")
        callbacks = [checkpoint, *others] if is_first else [*others, checkpoint]
        model.fit(*examples(), batch_size=16, epochs=20, verbose=0, callbacks=callbacks)
        told.append([stopping.best, stopping.stopped_epoch, stopping.best_epoch, best.best])
        told[-1] += [count.num_epochs, count.num_ends, *average.get_state().values()]
    return told, model.get_weights()


@each_kind_of_strategy
@pytest.mark.parametrize("is_first", [True, *exhaustive(False)])
def test_callbacks_know_what_they_knew(strategy, is_first, tmp_path):
    told, weights = run(strategy, tmp_path, is_first=is_first)

    again, weights_again = run(strategy, tmp_path, is_first=is_first)

    assert told[0][1] > 0  # It was stopped early.
    keras.tree.map_structure(np.testing.assert_array_equal, again, told)
    keras.tree.map_structure(np.testing.assert_array_equal, weights_again, weights)


def test_those_of_an_earlier_fit_know_what_they_knew_and_not_what_a_later_one_did(tmp_path):
    strategy = strategies.get("one device")
    told, _ = run(strategy, tmp_path, is_first=True, num_fits=2)

    again, _ = run(strategy, tmp_path, is_first=True, num_fits=2)

    keras.tree.map_structure(np.testing.assert_array_equal, again, told)
