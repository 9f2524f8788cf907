"""kerasdist.checkpoints.resumption and model_state: what of a checkpoint is restored, and when."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.checkpoints import (
    Folder,
    Resumption,
    model_state,
    resumption,
    variables,
)
from kerasdist.checkpoints.found_checkpoint import FoundCheckpoint, Training
from kerasdist.training.context import peers, running_call

PLAIN: Any = tf.distribute.get_strategy()


def make_model(seed=0):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.distribute_strategy = PLAIN
    return model


def trained_and_saved(directory, **changes):
    """Returns a trained model, and its checkpoint after two steps of the second epoch."""
    model = make_model()
    model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=2, verbose=0)
    record = {
        **{"epoch": 1, "step": 2, "is_finished": False, "num_logged": None, "monitored": {}},
        **{"run": "1", "fit": 0, "first_epoch": 0, "updates": 2, "epochs": 3, "batch_size": None},
        "history": {"epoch": [0], "history": {"loss": [7.0]}},
        **{"earlier_histories": [], "ends": [], "metrics": variables.metrics_of(model)},
        **{"other_optimizers": [], "learning_rates": [0.5], "callbacks": [], "data": None},
        "given": [],
        "variables": variables.signature_of(model),
        **{"time": 0.0, "writer": "1@here", "written": "", "versions": {}},
    }
    folder = Folder(str(directory))
    save = functools.partial(model_state.save_weights, model)
    folder.write(2, record | changes, model_state.read(model), save)
    return model, folder.read(2)


def begun(model, saved):
    """Returns a Resumption that has begun, its call, and what it said."""
    model.distribute_strategy = PLAIN
    training = Training(
        fit=0,
        epochs=3,
        batch_size=None,
        steps_per_epoch=4,
        num_batches=4,
        variables=variables.signature_of(model),
        other_optimizers=[],
    )
    call, lines = running_call.RunningCall(method="fit", model=model), []
    resumed = Resumption(FoundCheckpoint(saved, training), call, lines.append)
    resumed.begin()
    return resumed, call, lines


def test_the_newest_is_agreed_on_where_there_is_one(tmp_path):
    assert resumption.agreed_newest(Folder(str(tmp_path)), PLAIN) is None
    trained_and_saved(tmp_path)
    saved = resumption.agreed_newest(Folder(str(tmp_path)), PLAIN)
    assert saved is not None
    assert saved.step == 2


def test_weights_come_back_with_the_optimizer_or_alone(tmp_path):
    trained, saved = trained_and_saved(tmp_path)
    for with_optimizer, iterations in ((True, 2), (False, 0)):
        model = make_model(seed=1)
        model_state.restore(model, saved, with_optimizer=with_optimizer)
        np.testing.assert_array_equal(model.get_weights()[0], trained.get_weights()[0])
        assert int(model.optimizer.iterations) == iterations


def test_weights_come_when_it_begins_and_what_callbacks_change_when_its_epoch_does(tmp_path):
    trained, saved = trained_and_saved(tmp_path)
    model = make_model(seed=1)
    model.optimizer.learning_rate = 0.25  # As a program that was changed compiles it.

    resumed, call, lines = begun(model, saved)
    np.testing.assert_array_equal(model.get_weights()[0], trained.get_weights()[0])
    assert float(model.optimizer.learning_rate) == 0.25  # Other callbacks see it first.
    assert (call.resume_at.epoch, call.resume_at.step) == (1, 2)
    assert "epoch 2 of 3, after 2 of its steps" in lines[0]
    assert "goes on with the learning rate 0.5" in lines[1]

    model.history = keras.callbacks.History()
    model.history.epoch = []
    resumed.go_on()
    assert float(model.optimizer.learning_rate) == 0.5
    assert model.history.history == {"loss": [7.0]}

    model.optimizer.learning_rate = 0.125  # As a callback halves it in each epoch.
    resumed.go_on_in_epoch()
    assert float(model.optimizer.learning_rate) == 0.5


def test_an_epoch_that_begins_is_restored_once(tmp_path):
    _, saved = trained_and_saved(tmp_path, step=0)
    model = make_model()
    resumed, _, _ = begun(model, saved)
    resumed.go_on()
    model.optimizer.learning_rate = 0.125
    resumed.go_on_in_epoch()
    assert float(model.optimizer.learning_rate) == 0.125


def test_a_finished_training_is_not_begun(tmp_path):
    _, saved = trained_and_saved(tmp_path, epoch=3, step=0, is_finished=True)
    resumed, call, lines = begun(make_model(), saved)
    assert resumed.is_over
    assert call.resume_at is None
    assert "is finished: 2 steps, 3 epochs" in lines[0]


def test_the_newest_of_another_training_is_not_taken(monkeypatch, tmp_path):
    trained_and_saved(tmp_path)

    def gather(strategy, row):
        return np.stack([row, [9, 7]])

    monkeypatch.setattr(peers, "gather", gather)
    with pytest.raises(RuntimeError, match=r"of the steps 2, 9 \(-1: none"):
        resumption.agreed_newest(Folder(str(tmp_path)), PLAIN)
