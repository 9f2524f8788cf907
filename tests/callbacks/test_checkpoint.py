"""Checkpoints: a training that was interrupted ends as one that was not."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import threading
import uuid
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.callbacks import (
    Checkpoint,
    GradientAccumulation,
    LossAverages,
    MovingAverage,
    Summaries,
)
from kerasdist.checkpoints import Folder
from kerasdist.parity.data import examples
from kerasdist.training.epochs import data_states
from kerasdist.training.epochs.epoch_iterator import EpochIterator
from kerasdist.training.epochs.own_data import OwnData
from tests import event_files, permissions, strategies
from tests.callbacks import hand_loop
from tests.cases import exhaustive
from tests.full_disk import files_of_at_most
from tests.strategies import each_kind_of_strategy

pytestmark = pytest.mark.thorough


class Interrupted(Exception):
    """A program is killed."""


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` after so many steps, as a crash does."""

    def __init__(self, after: int):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


def make_model(strategy, **arguments):
    """Returns a model with all that can differ after a resume: dropout, statistics, a schedule."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.7)
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ],
            name="net",
        )
        model.compile(keras.optimizers.Adam(schedule), "mse", metrics=["mae"], **arguments)
    return model


def shuffled_dataset():
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(101, seed=3).batch(16)
    return (data,)


def arrays():
    return examples()


def augmented():
    def distort(x, y):
        return x + tf.random.normal(tf.shape(x), stddev=0.1), y

    (data,) = shuffled_dataset()
    return (data.map(distort),)


def generator():
    x, y = examples()

    def batches():
        rng = np.random.default_rng(0)
        while True:
            rows = rng.integers(0, 101, 16)
            yield x[rows], y[rows]

    return (batches(),)


def train(strategy, data, callbacks=(), *, epochs=3, make=make_model, **arguments):
    """Trains a new model, as a program does that is started; returns the model and its history."""
    model = make(strategy)
    if data is generator:
        arguments["steps_per_epoch"] = 7
    fit = {"batch_size": 16} if data is arrays else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*shuffle=True. was passed")
        history = model.fit(
            *data(), epochs=epochs, verbose=0, callbacks=list(callbacks), **fit, **arguments
        )
    return model, history


@functools.cache
def uninterrupted(strategy, data, *, epochs=3):
    """Returns the model and the history of a run that many tests compare theirs with."""
    return train(strategy, data, epochs=epochs)


def interrupted(strategy, data, folder, *, after, callbacks=lambda: (), every_steps=4, **arguments):
    """Trains until the program is killed, starts it again, and returns what comes of that."""
    first, second = (Checkpoint(folder, every_steps=every_steps) for _ in range(2))
    with pytest.raises(Interrupted):
        train(strategy, data, [*callbacks(), first, Interrupt(after)], **arguments)
    return train(strategy, data, [*callbacks(), second], **arguments)


def assert_equal(found, expected, strategy):
    (model, history), (truth, expected_history) = found, expected
    is_exact = strategy.num_replicas_in_sync == 1
    tolerance = 0 if is_exact else 1e-6
    for ours, theirs in zip(model.get_weights(), truth.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=0)
    for ours, theirs in zip(model.optimizer.variables, truth.optimizer.variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=tolerance, rtol=0)
    assert history.epoch == expected_history.epoch
    assert history.history.keys() == expected_history.history.keys()
    for name, values in expected_history.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-5, atol=1e-6)


# One device with the others: below.
@pytest.mark.parametrize(
    ("strategy", "data"),
    [
        ("3 replicas", arrays),
        *exhaustive(
            ("3 replicas", generator),
            ("3 replicas", shuffled_dataset),
            ("3 replicas", augmented),
            ("one device", generator),
        ),
    ],
    indirect=["strategy"],
)
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(strategy, data, tmp_path):
    expected = uninterrupted(strategy, data)

    found = interrupted(strategy, data, tmp_path, after=10)

    assert_equal(found, expected, strategy)


@pytest.mark.parametrize("after", [8, *exhaustive(1, 4, 7, 20, 21)])
def test_wherever_it_is_interrupted(after, tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset)

    found = interrupted(strategy, shuffled_dataset, tmp_path, after=after)

    assert_equal(found, expected, strategy)


@pytest.mark.parametrize("after", [7, *exhaustive(8)])
def test_at_the_last_step_of_an_epoch(after, tmp_path):
    strategy = strategies.get("2 replicas")
    expected = uninterrupted(strategy, arrays)

    found = interrupted(strategy, arrays, tmp_path, after=after, every_steps=7)

    assert_equal(found, expected, strategy)


def test_without_a_number_there_is_one_after_each_epoch(tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset)

    found = interrupted(strategy, shuffled_dataset, tmp_path, after=17, every_steps=None)

    assert_equal(found, expected, strategy)
    assert names(tmp_path) == ["step-00000007", "step-00000014", "step-00000021"]


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@each_kind_of_strategy
def test_callbacks_go_on(strategy, tmp_path):
    def callbacks():
        return (
            GradientAccumulation(steps=3),
            LossAverages(),
            MovingAverage(0.9),
            keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True),
        )

    expected = train(strategy, arrays, callbacks(), epochs=4)

    found = interrupted(
        strategy, arrays, tmp_path, after=19, callbacks=callbacks, every_steps=1, epochs=4
    )

    assert_equal(found, expected, strategy)


def test_a_model_is_saved_at_the_same_steps(tmp_path):
    def callbacks():
        file = tmp_path / "models/{epoch:02d}-{batch:02d}.weights.h5"
        return (keras.callbacks.ModelCheckpoint(file, save_freq=4, save_weights_only=True),)

    strategy, run = strategies.get("one device"), tmp_path / "run"
    interrupted(strategy, arrays, run, after=10, every_steps=3, callbacks=callbacks)

    # As with epochs of 7 steps in one go; Keras counts from 1.
    expected = ["01-04", "02-01", "02-05", "03-02", "03-06"]
    assert names(tmp_path / "models") == [f"{each}.weights.h5" for each in expected]


@pytest.mark.exhaustive
def test_a_plateau_is_remembered(tmp_path):
    strategy = strategies.get("one device")

    def make(strategy):
        model = make_model(strategy)
        with strategy.scope():
            model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    def callbacks():
        return (keras.callbacks.ReduceLROnPlateau("loss", patience=2, min_delta=10),)

    expected = train(strategy, arrays, callbacks(), epochs=5, make=make)
    arguments = {"callbacks": callbacks, "epochs": 5, "make": make}

    found = interrupted(strategy, arrays, tmp_path, after=17, **arguments)

    assert_equal(found, expected, strategy)


def test_calls_of_several_steps(tmp_path):
    strategy = strategies.get("2 replicas")

    def make(strategy):
        return make_model(strategy, steps_per_execution=3)

    expected = train(strategy, arrays, make=make)

    found = interrupted(strategy, arrays, tmp_path, after=5, make=make)

    assert_equal(found, expected, strategy)


def test_a_finished_run_says_so_and_more_epochs_go_on(tmp_path, capsys):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset, epochs=5)
    finished = train(strategy, shuffled_dataset, [Checkpoint(tmp_path)], epochs=3)

    again = train(strategy, shuffled_dataset, [Checkpoint(tmp_path)], epochs=3)
    assert (
        "is finished: 21 steps, 3 epochs. To train longer, ask for more epochs or steps;"
        in capsys.readouterr().err
    )
    assert_equal(again, finished, strategy)
    more = train(strategy, shuffled_dataset, [Checkpoint(tmp_path)], epochs=5)

    assert_equal(more, expected, strategy)


def of_unknown_length():
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: x[0] > -1)
    return (data.shuffle(20, seed=3).batch(16),)


@pytest.mark.exhaustive
@pytest.mark.parametrize("after", [7, 13])  # Epochs have 6 steps, which nobody knows.
def test_data_of_unknown_length_may_have_ended_with_the_checkpoint(after, tmp_path):
    strategy = strategies.get("one device")

    found = interrupted(strategy, of_unknown_length, tmp_path, after=after, every_steps=6)

    assert_equal(found, uninterrupted(strategy, of_unknown_length), strategy)


class Errors(keras.metrics.MeanAbsoluteError):
    """Has several results, each with a name of its own."""

    def result(self):
        return {"once": super().result(), "twice": super().result() * 2}


class Logging(keras.Sequential):
    """Logs a number that no metric has."""

    def train_step(self, data):
        return {**super().train_step(data), "rate": self.optimizer.learning_rate * 1.0}


def test_an_epoch_that_had_ended_logs_what_its_last_step_did(tmp_path, capsys):
    def make(strategy):
        with strategy.scope():
            model = Logging([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse", metrics=[Errors()])
        return model

    strategy = strategies.get("one device")

    arguments = {"after": 7, "every_steps": 6, "make": make}
    found = interrupted(strategy, of_unknown_length, tmp_path, **arguments)

    assert "step 6, epoch 1 of 3, after 6 of its steps" in capsys.readouterr().err
    expected = train(strategy, of_unknown_length, make=make)
    assert_equal(found, expected, strategy)
    assert set(expected[1].history) == {"loss", "once", "twice", "rate"}


@pytest.mark.exhaustive
def test_data_of_unknown_length_may_have_ended_in_a_call_of_several_steps(tmp_path):
    def uncounted():
        x, y = examples()
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=3).cache()
        return (data.filter(lambda x, y: x[0] > -1).batch(16),)

    def make(strategy):
        return make_model(strategy, steps_per_execution=4)

    strategy = strategies.get("one device")
    expected = train(strategy, uncounted, make=make)

    arguments = {"after": 5, "every_steps": 6, "make": make}  # In the third epoch, of 4 and 2.
    found = interrupted(strategy, uncounted, tmp_path, **arguments)

    assert_equal(found, expected, strategy)


@pytest.fixture
def read_again(monkeypatch):
    """Returns a list that fills with how many batches are read at once to find a place."""
    read = []
    stock = OwnData.read

    def counted(self, source, num_steps):
        answer = stock(self, source, num_steps)
        read.append(answer[0])
        return answer

    monkeypatch.setattr(OwnData, "read", counted)
    return read


@pytest.fixture
def without_place(monkeypatch):
    """Keeps no state in the midst of the data, as if it were too large."""
    monkeypatch.setattr(data_states, "_MOST_BYTES", -1)


def mapped(x, y):
    return x * 2, y + 1


def in_steps():
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).repeat()
    return (data.map(mapped, num_parallel_calls=2).batch(16).prefetch(2),)


def prepared_and_shuffled():
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(mapped, num_parallel_calls=2)
    return (data.shuffle(30).batch(16).prefetch(2),)


def interleaved():
    x, y = examples()
    files = tf.data.Dataset.range(0, 101, 10).shuffle(11)
    data = files.interleave(lambda start: tf.data.Dataset.range(start, start + 10))
    data = data.shuffle(20).map(lambda row: (tf.gather(x, row % 101), tf.gather(y, row % 101)))
    return (data.batch(16),)


def cached():
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(mapped).cache().shuffle(101)
    return (data.batch(16),)


NOT_READ = "No data is read again."
SKIPPED = "What comes before it in the data is skipped"


@pytest.mark.parametrize(
    ("data", "after", "every_steps"),
    [
        (shuffled_dataset, 17, 4),
        (interleaved, 17, 4),
        *exhaustive(
            (of_unknown_length, 17, 4),
            (shuffled_dataset, 17, None),
            (of_unknown_length, 7, 6),
            (prepared_and_shuffled, 17, 4),
        ),
    ],
)
def test_no_data_is_read_again(data, after, every_steps, read_again, tmp_path, capsys):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, data, epochs=4)

    found = interrupted(strategy, data, tmp_path, after=after, every_steps=every_steps, epochs=4)

    assert_equal(found, expected, strategy)
    assert sum(read_again) == 0
    assert NOT_READ in capsys.readouterr().err


@pytest.mark.parametrize("after", [17, *exhaustive(6)])
def test_no_data_is_read_again_where_epochs_share_it(after, read_again, tmp_path, capsys):
    strategy = strategies.get("one device")
    arguments = {"epochs": 4, "steps_per_epoch": 5, "validation_data": shuffled_dataset()[0]}
    expected = train(strategy, in_steps, **arguments)

    found = interrupted(strategy, in_steps, tmp_path, after=after, **arguments)

    assert_equal(found, expected, strategy)
    assert sum(read_again) == 0
    assert NOT_READ in capsys.readouterr().err


@pytest.mark.usefixtures("without_place")
@pytest.mark.parametrize(
    ("data", "after", "every_steps"),
    [
        (interleaved, 17, 4),
        (prepared_and_shuffled, 17, 4),
        *exhaustive(
            (interleaved, 15, 7),
            (prepared_and_shuffled, 17, 7),
            (shuffled_dataset, 17, 4),
            (of_unknown_length, 17, 4),
            (in_steps, 17, 4),
        ),
    ],
)
def test_what_prepares_elements_is_left_out(data, after, every_steps, read_again, tmp_path, capsys):
    strategy = strategies.get("one device")
    arguments = {"epochs": 4, **({"steps_per_epoch": 5} if data is in_steps else {})}
    expected = train(strategy, data, **arguments)

    found = interrupted(strategy, data, tmp_path, after=after, every_steps=every_steps, **arguments)

    assert_equal(found, expected, strategy)
    assert sum(read_again) == 0
    assert SKIPPED in capsys.readouterr().err or every_steps == 7


@pytest.mark.parametrize("data", [shuffled_dataset, *exhaustive(interleaved, in_steps)])
def test_a_place_of_other_parts_of_the_data_is_not_used(data, monkeypatch, tmp_path, capsys):
    strategy = strategies.get("one device")
    arguments = {"epochs": 4, **({"steps_per_epoch": 5} if data is in_steps else {})}
    expected = train(strategy, data, **arguments)
    stock = EpochIterator.state

    def state(self, **progress):  # As if each of 3 workers had its own.
        kept = stock(self, **progress)
        assert kept is not None
        return dataclasses.replace(kept, num_parts=3)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(EpochIterator, "state", state)
        callbacks = [Checkpoint(tmp_path, every_steps=4), Interrupt(17)]
        train(strategy, data, callbacks, **arguments)

    found = train(strategy, data, [Checkpoint(tmp_path, every_steps=4)], **arguments)

    assert_equal(found, expected, strategy)
    assert SKIPPED in capsys.readouterr().err


def test_files_may_have_moved(tmp_path, read_again, capsys):
    strategy, folder, x, y = strategies.get("one device"), tmp_path / "here", *examples()
    folder.mkdir()
    for number, row in enumerate(np.hstack([x, y.reshape([-1, 1])]).astype("float32")):
        (folder / f"{number:03}").write_bytes(row.tobytes())

    def load(path):
        row = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [7])
        return row[:6], row[6:]

    def in_files():
        paths = sorted(map(str, folder.iterdir()))
        return (tf.data.Dataset.from_tensor_slices(paths).shuffle(50).map(load).batch(16),)

    expected = train(strategy, in_files)
    with pytest.raises(Interrupted):
        callbacks = [Checkpoint(tmp_path / "run", every_steps=4), Interrupt(11)]
        train(strategy, in_files, callbacks)
    folder = folder.rename(tmp_path / "there")

    found = train(strategy, in_files, [Checkpoint(tmp_path / "run", every_steps=4)])

    assert_equal(found, expected, strategy)
    assert sum(read_again) == 0
    assert SKIPPED in capsys.readouterr().err


@pytest.mark.usefixtures("without_place")
def test_of_whole_passes_nothing_is_read(tmp_path, read_again, capsys):
    def prepared():
        x, y = examples()
        data = tf.data.Dataset.from_tensor_slices((x, y)).map(mapped).shuffle(101)
        return (data.repeat().batch(16),)

    strategy = strategies.get("one device")
    arguments = {"epochs": 4, "steps_per_epoch": 5}
    expected = train(strategy, prepared, **arguments)

    found = interrupted(strategy, prepared, tmp_path, after=17, **arguments)

    assert_equal(found, expected, strategy)
    assert sum(read_again) == 0
    assert SKIPPED in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("first", [12, 10])  # In the midst of an epoch, and at the end of one.
def test_data_that_is_longer_now_is_not_read_again(first, tmp_path, read_again, capsys):
    """As where `take` says how many steps there are in all."""
    strategy = strategies.get("one device")

    def train_until(last_step, callbacks=()):
        def taken():
            (data,) = in_steps()
            return (data.take(last_step),)

        epochs = math.ceil(last_step / 5)
        return train(strategy, taken, callbacks, epochs=epochs, steps_per_epoch=5)

    expected = train_until(18)
    train_until(first, [Checkpoint(tmp_path)])

    found = train_until(18, [Checkpoint(tmp_path)])

    np.testing.assert_array_equal(found[0].get_weights()[0], expected[0].get_weights()[0])
    assert found[0].optimizer.iterations == 18
    assert sum(read_again) == 0
    assert SKIPPED in capsys.readouterr().err


def test_a_cache_needs_the_epoch_again(read_again, tmp_path, capsys):
    strategy = strategies.get("one device")
    expected = train(strategy, cached, epochs=4)

    found = interrupted(strategy, cached, tmp_path, after=17, epochs=4)

    assert_equal(found, expected, strategy)
    assert read_again == [2]
    assert "The data of this epoch is read again up to that step." in capsys.readouterr().err


@pytest.mark.parametrize("data", [of_unknown_length, *exhaustive(shuffled_dataset)])
def test_more_epochs_of_a_finished_run_read_nothing_again(data, read_again, tmp_path):
    strategy = strategies.get("one device")
    train(strategy, data, [Checkpoint(tmp_path)], epochs=3)

    found = train(strategy, data, [Checkpoint(tmp_path)], epochs=5)

    assert_equal(found, uninterrupted(strategy, data, epochs=5), strategy)
    assert sum(read_again) == 0


def test_random_operations_in_the_data_begin_anew_with_each_epoch(read_again, tmp_path, capsys):
    strategy = strategies.get("one device")

    found = interrupted(strategy, augmented, tmp_path, after=17)

    assert_equal(found, uninterrupted(strategy, augmented), strategy)
    assert sum(read_again) == 0
    assert SKIPPED in capsys.readouterr().err


def test_another_pipeline_is_told(read_again, tmp_path):
    def in_another_order():
        (data,) = shuffled_dataset()
        return (data.unbatch().shuffle(10).batch(16, drop_remainder=True),)

    strategy = strategies.get("one device")
    with pytest.raises(Interrupted):
        checkpoint = Checkpoint(tmp_path, every_steps=4)
        train(strategy, shuffled_dataset, [checkpoint, Interrupt(10)])

    with pytest.warns(UserWarning, match="The dataset has other transformations than the one of"):
        train(strategy, in_another_order, [Checkpoint(tmp_path)])

    assert sum(read_again) == 0


def test_a_data_service_in_mid_epoch_is_told(tmp_path):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.rpartition("/")[2]
    server = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))

    def served():
        (data,) = shuffled_dataset()
        return (data.apply(service.distribute("distributed_epoch", dispatcher.target)),)

    strategy = strategies.get("one device")
    with pytest.warns(UserWarning) as warned:
        interrupted(strategy, served, tmp_path, after=10)
    train(strategy, served, [Checkpoint(tmp_path)], epochs=4)  # Between two epochs: no word.

    told = "The training goes on in the middle of an epoch with data of a tf.data service"
    assert sum(told in str(each.message) for each in warned) == 1
    del server


@pytest.mark.parametrize("data", [arrays, *exhaustive(shuffled_dataset, augmented)])
def test_a_run_that_does_not_begin_with_the_first_epoch(data, tmp_path):
    strategy = strategies.get("one device")
    arguments = {"initial_epoch": 2, "epochs": 5}

    found = interrupted(strategy, data, tmp_path, after=10, **arguments)

    assert_equal(found, train(strategy, data, **arguments), strategy)


@pytest.mark.exhaustive
def test_several_fits_on_one_dataset(tmp_path):
    def program(*interrupt):
        model = make_model(strategies.get("one device"))
        (data,) = shuffled_dataset()  # Whose order the epochs of both change.
        for number in range(2):
            others = interrupt if number else ()
            callbacks = [Checkpoint(tmp_path / str(len(interrupt)), every_steps=4), *others]
            history = model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        return model, history

    expected = program()
    with pytest.raises(Interrupted):
        program(Interrupt(6))

    found = program(keras.callbacks.Callback())

    assert_equal(found, expected, strategies.get("one device"))


def cut_short(num_batches, *, validated=True, epochs):
    """Returns arguments of `fit` whose data runs out in the middle of an epoch of 4 steps."""
    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(101, seed=3).batch(16).repeat()
    others = {"validation_data": (x[:20], y[:20])} if validated else {}
    arguments = {"steps_per_epoch": 4, "shuffle": False, "verbose": 0}
    return {"x": data.take(num_batches), "epochs": epochs, **arguments, **others}


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@each_kind_of_strategy
def test_an_epoch_in_which_the_data_ran_out_goes_on_when_there_is_more(strategy, tmp_path):
    def train(num_batches, *, epochs, callbacks=()):
        model = make_model(strategy)
        # Without validation, the metrics are still those of training when the epoch ends.
        validated = strategy is not strategies.get("one device")
        arguments = cut_short(num_batches, validated=validated, epochs=epochs)
        return model, model.fit(**arguments, callbacks=list(callbacks))

    expected = train(11, epochs=3)
    first, again, more = (Checkpoint(tmp_path) for _ in range(3))
    before = train(6, epochs=2, callbacks=[first])
    assert_equal(train(6, epochs=2, callbacks=[again]), before, strategy)
    found = train(11, epochs=3, callbacks=[more])

    assert again.resumed_from == more.resumed_from
    assert first.resumed_from is None
    assert_equal(found, expected, strategy)
    assert found[1].epoch == [0, 1, 2]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("deployment", ["2 replicas", "one device"])
def test_more_data_for_the_same_last_epoch_goes_on_in_it(deployment, tmp_path):
    strategy = strategies.get(deployment)

    def train(num_batches, callbacks=()):
        model = make_model(strategy)
        return model, model.fit(**cut_short(num_batches, epochs=2), callbacks=list(callbacks))

    expected = train(7)
    train(5, [Checkpoint(tmp_path)])
    found = train(7, [Checkpoint(tmp_path)])

    assert_equal(found, expected, strategy)
    assert_equal(train(7, [Checkpoint(tmp_path)]), expected, strategy)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_an_epoch_in_which_the_data_ran_out_can_be_the_last_of_the_data(tmp_path):
    """As with a generator of which there is no more: only the later epochs go on."""
    strategy = strategies.get("one device")

    def train(epochs, callbacks=()):
        model = make_model(strategy)
        arguments = cut_short(6, epochs=epochs)
        return model, model.fit(**arguments, callbacks=list(callbacks))

    expected = train(3)
    train(2, [Checkpoint(tmp_path)])
    found = train(3, [Checkpoint(tmp_path)])

    assert_equal(found, expected, strategy)


@pytest.mark.exhaustive  # Beside tests/checkpoints/test_several_fits.py.
def test_several_fits_in_a_row(tmp_path):
    def program(*interrupt):
        model = make_model(strategies.get("one device"))
        for number in range(2):
            callbacks = [Checkpoint(tmp_path, every_steps=4)]
            history = model.fit(
                *examples(),
                epochs=2,
                batch_size=16,
                verbose=0,
                callbacks=[*callbacks, *(interrupt if number else ())],
            )
        return model, history

    expected = program()
    for name in names(tmp_path):
        (tmp_path / name).rename(tmp_path / f"old-{name}")
    with pytest.raises(Interrupted):
        program(Interrupt(6))

    assert_equal(program(), expected, strategies.get("one device"))


def fine_tune(folder, *interrupt):
    """Trains a new head, compiles the model anew, and trains all of it."""
    strategy = strategies.get("one device")
    model = make_model(strategy)
    for is_whole in (False, True):
        with strategy.scope():
            model.layers[0].trainable = is_whole
            model.compile(keras.optimizers.RMSprop(1e-3) if is_whole else "sgd", "mse")
        callbacks = [Checkpoint(folder, every_steps=3, keep=2), *(interrupt if is_whole else ())]
        size = 16 if is_whole else 20
        history = model.fit(*examples(), epochs=2, batch_size=size, verbose=0, callbacks=callbacks)
    return model, history


def test_a_later_fit_with_another_optimizer_is_resumed(tmp_path, capsys):
    expected = fine_tune(tmp_path / "whole")
    with pytest.raises(Interrupted):
        fine_tune(tmp_path / "parts", Interrupt(8))
    # The first one ended with step 12.
    steps = ["step-00000012", "step-00000015", "step-00000018"]
    assert names(tmp_path / "parts") == steps

    assert_equal(fine_tune(tmp_path / "parts"), expected, strategies.get("one device"))
    said = capsys.readouterr().err
    assert "Nothing left to train in this `fit`, which ended with " in said
    assert "step-00000018: step 18, epoch 1 of 2, after 6 of its steps." in said


class CompileIn(keras.callbacks.Callback):
    """Compiles the model anew in the third epoch, as it begins or as it ends."""

    def __init__(self, moment):
        super().__init__()
        setattr(self, moment, self._compile)

    def _compile(self, epoch, logs=None):
        if epoch == 2:
            optimizer = keras.optimizers.Adam.from_config(self.model.optimizer.get_config())
            self.model.compile(optimizer, "mse")
            self.model.make_train_function()


@pytest.mark.parametrize("moment", ["on_epoch_end", *exhaustive("on_epoch_begin")])
def test_a_model_compiled_within_a_fit_is_the_newest(moment, tmp_path, capsys):
    def run():
        model = make_model(strategies.get("one device"))
        callbacks = [CompileIn(moment), Checkpoint(tmp_path)]
        model.fit(*examples(), epochs=3, batch_size=16, verbose=0, callbacks=callbacks)
        return model

    weights = run().get_weights()

    hand_loop.assert_same(run(), weights, tolerance=0)
    assert "is finished: " in capsys.readouterr().err


def damage_checkpoint(folder, step):
    (folder / f"step-{step:08d}" / "state.npz").write_bytes(b"")


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset)
    with pytest.raises(Interrupted):
        train(strategy, shuffled_dataset, [Checkpoint(tmp_path, every_steps=4), Interrupt(10)])
    damage_checkpoint(tmp_path, 8)

    callback = Checkpoint(tmp_path, every_steps=4)
    with pytest.warns(UserWarning, match="The checkpoint of step 8 cannot be read"):
        found = train(strategy, shuffled_dataset, [callback])

    assert callback.resumed_from == str(tmp_path / "step-00000004")
    assert_equal(found, expected, strategy)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The checkpoint of step")
def test_what_comes_after_a_damaged_checkpoint_is_kept(tmp_path):
    strategy = strategies.get("one device")
    with pytest.raises(Interrupted):
        train(strategy, arrays, [Checkpoint(tmp_path, every_steps=4, keep=2), Interrupt(10)])
    damage_checkpoint(tmp_path, 8)
    with pytest.raises(Interrupted):
        train(strategy, arrays, [Checkpoint(tmp_path, every_steps=3, keep=1), Interrupt(4)])

    last = Checkpoint(tmp_path)
    found = train(strategy, arrays, [last])

    assert last.resumed_from == str(tmp_path / "step-00000006")
    assert_equal(found, uninterrupted(strategy, arrays), strategy)


@pytest.mark.filterwarnings("ignore:The checkpoint of step")
def test_a_training_whose_checkpoints_are_all_damaged_begins_anew_and_says_so(tmp_path):
    strategy = strategies.get("one device")
    with pytest.raises(Interrupted):
        train(strategy, arrays, [Checkpoint(tmp_path, every_steps=4), Interrupt(5)])
    damage_checkpoint(tmp_path, 4)

    with pytest.warns(UserWarning, match=f"No checkpoint in '{tmp_path}' can be read: training"):
        found = train(strategy, arrays, [Checkpoint(tmp_path)])

    assert_equal(found, uninterrupted(strategy, arrays), strategy)


@pytest.mark.parametrize("name", ["checkpoint.json", *exhaustive("model.weights.h5")])
def test_a_checkpoint_that_may_not_be_read_is_an_error_and_stays(name, tmp_path):
    strategy = strategies.get("one device")
    train(strategy, arrays, [Checkpoint(tmp_path, keep=1)], epochs=1)
    before = names(tmp_path)
    (tmp_path / before[0] / name).chmod(0)

    with (
        permissions.respected(),
        pytest.raises(OSError, match=r"step-00000007 cannot be read, but may be whole: .*denied"),
    ):
        train(strategy, arrays, [Checkpoint(tmp_path, keep=1)])

    assert names(tmp_path) == before


def test_the_newest_are_kept_and_weights_load_with_keras(tmp_path):
    model, _ = train(
        strategies.get("2 replicas"), arrays, [Checkpoint(tmp_path, every_steps=3, keep=2)]
    )

    assert names(tmp_path) == ["step-00000018", "step-00000021"]
    plain = keras.models.clone_model(model)
    plain.load_weights(tmp_path / "step-00000021/model.weights.h5")
    for ours, theirs in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Losses(keras.callbacks.Callback):
    """Gives the epochs the losses of a test."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def on_epoch_end(self, epoch, logs: Any = None):
        logs["val_loss"] = self.losses[epoch]


@pytest.mark.parametrize(
    ("mode", "best", "every"),
    [*exhaustive(("auto", [14, 28], {})), ("max", [7, 21], {"every_steps": 3})],
    ids=["min", "max"],
)
def test_the_best_are_kept_beside_the_newest(mode, best, every, tmp_path):
    model = make_model(strategies.get("one device"))
    checkpoint = Checkpoint(tmp_path, keep=1, keep_best=2, mode=mode, **every)
    losses = Losses([4.0, 1.0, 3.0, 2.0, float("nan")])
    model.fit(
        *arrays(), batch_size=16, epochs=5, shuffle=False, verbose=0, callbacks=[losses, checkpoint]
    )

    kept = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.iterdir())
    assert kept == [*best, 35]
    assert checkpoint.best == str(tmp_path / f"step-{best[0]:08d}")
    keras.models.clone_model(model).load_weights(f"{checkpoint.best}/model.weights.h5")


def test_a_log_that_is_not_there_is_named_once(tmp_path):
    model = make_model(strategies.get("one device"))
    checkpoint = Checkpoint(tmp_path, keep_best=1, monitor="val_acc")

    with pytest.warns(UserWarning, match=r"finds no 'val_acc' among the logs .* loss, mae") as said:
        model.fit(*arrays(), batch_size=16, epochs=2, verbose=0, callbacks=[checkpoint])
    assert sum("val_acc" in str(warning.message) for warning in said) == 1
    assert checkpoint.best is None


@pytest.mark.exhaustive
def test_what_a_killed_writer_has_left_is_removed(tmp_path):
    (tmp_path / ".unfinished-step-00000003-1").mkdir()

    train(strategies.get("one device"), arrays, [Checkpoint(tmp_path)])

    assert names(tmp_path) == ["step-00000007", "step-00000014", "step-00000021"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one device", "3 replicas"),
        *exhaustive(("3 replicas", "2 replicas"), ("2 replicas", "one device")),
    ],
)
def test_on_other_replicas(first, second, tmp_path):
    def make(strategy):
        model = make_model(strategy)
        model.layers[2].rate = 0.0  # Random numbers differ with the number of replicas.
        return model

    expected = train(strategies.get("one device"), arrays, make=make)
    with pytest.raises(Interrupted):
        callbacks = [Checkpoint(tmp_path, every_steps=4), Interrupt(10)]
        train(strategies.get(first), arrays, callbacks, make=make)

    found = train(strategies.get(second), arrays, [Checkpoint(tmp_path, every_steps=4)], make=make)

    for ours, theirs in zip(found[0].get_weights(), expected[0].get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found[1].history["mae"], expected[1].history["mae"], atol=1e-5)


def test_another_model_is_refused_with_the_differences(tmp_path):
    strategy = strategies.get("one device")
    train(strategy, arrays, [Checkpoint(tmp_path)])

    def wider(strategy):
        return hand_loop.make_model(strategy)

    with pytest.raises(ValueError, match=r"weight .*gamma: float32 \[8\] in the checkpoint, "):
        train(strategy, arrays, [Checkpoint(tmp_path)], make=wider)


@pytest.mark.parametrize("kind", ["whole batches", *exhaustive("arrays", "a dataset")])
def test_another_batch_size_is_refused(kind, tmp_path):
    def fit(size, **arguments):
        model = make_model(strategies.get("one device"))
        x, y = examples()
        data = {"x": x, "y": y, "batch_size": size}
        if kind != "arrays":
            rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9)
            batches = rows.batch(size, drop_remainder=kind == "whole batches")
            data = {"x": batches.prefetch(2), "shuffle": False}
        callbacks = [Checkpoint(tmp_path, **arguments)]
        # That of validation is none of its business.
        return model.fit(
            **data, callbacks=callbacks, verbose=0, validation_data=(x, y), validation_batch_size=7
        )

    fit(16)
    fit(16)
    with pytest.raises(ValueError, match="batch size 16 in the checkpoint, 32 now"):
        fit(32)
    fit(32, weights_if_changed=True)


def test_the_weights_alone_with_another_optimizer(tmp_path, capsys):
    strategy = strategies.get("one device")
    model, _ = train(strategy, arrays, [Checkpoint(tmp_path)])

    def with_sgd(strategy):
        other = make_model(strategy)
        with strategy.scope():
            other.compile(keras.optimizers.SGD(0.0), "mse")
        return other

    with pytest.raises(ValueError, match="weights_if_changed=True"):
        train(strategy, arrays, [Checkpoint(tmp_path)], make=with_sgd)
    callback = Checkpoint(tmp_path, weights_if_changed=True)
    other, history = train(strategy, arrays, [callback], make=with_sgd)

    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    assert len(history.epoch) == 3
    assert "Weights taken from" in capsys.readouterr().err
    # Its own are the newest.
    again = Checkpoint(tmp_path)
    train(strategy, arrays, [again], make=with_sgd)
    assert again.resumed_from == str(tmp_path / "step-00000042")


def test_training_goes_on_where_it_cannot_be_written(tmp_path, capsys):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, arrays)
    (tmp_path / "file").write_text("in the way")

    with pytest.warns(UserWarning, match=r"Checkpoints cannot be written to .*file/run"):
        found = train(strategy, arrays, [Checkpoint(tmp_path / "file" / "run")])

    assert f"No checkpoint could be written to {tmp_path}/file/run." in capsys.readouterr().err
    assert_equal(found, expected, strategy)
    raises = Checkpoint(tmp_path / "file" / "run", on_error="raise")
    with pytest.raises((OSError, tf.errors.OpError), match="file"):
        train(strategy, arrays, [raises, Interrupt(1)])  # Before the first step.


@pytest.mark.exhaustive
def test_training_goes_on_where_the_folder_is_read_only(tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, arrays)
    train(strategy, arrays, [Checkpoint(tmp_path)], epochs=1)
    before = names(tmp_path)
    tmp_path.chmod(0o555)

    with (
        permissions.respected(),
        pytest.warns(UserWarning, match="Checkpoints cannot be written"),
    ):
        found = train(strategy, arrays, [Checkpoint(tmp_path)])

    assert_equal(found, expected, strategy)  # It has read the one of before.
    assert names(tmp_path) == before
    tmp_path.chmod(0o755)
    train(strategy, arrays, [Checkpoint(tmp_path)])
    assert names(tmp_path)[-1] > before[-1]


class Fill(keras.callbacks.Callback):
    """Fills the disk after a number of updates, and empties it after another."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.stack = contextlib.ExitStack()

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if step == self.first:
            self.stack.enter_context(files_of_at_most(2000))
        if step == self.last:
            self.stack.close()


def test_a_disk_that_is_full_for_a_while_harms_nothing(tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, arrays)
    fill = Fill(6, 14)
    with fill.stack, pytest.warns(UserWarning, match="of step 8 cannot be written") as told:
        found = train(strategy, arrays, [Checkpoint(tmp_path, every_steps=4), fill])

    assert_equal(found, expected, strategy)
    assert sum("cannot be written" in str(each.message) for each in told) == 1
    assert names(tmp_path) == [f"step-{step:08d}" for step in (4, 16, 20, 21)]
    assert not [each for each in tmp_path.iterdir() if not each.name.startswith("step-")]
    fill = Fill(3, 99)
    with fill.stack, pytest.raises((OSError, tf.errors.OpError)):
        callback = Checkpoint(tmp_path / "other", every_steps=4, on_error="raise")
        train(strategy, arrays, [callback, fill])
    assert names(tmp_path / "other") == []


def test_a_file_system_that_tensorflow_alone_knows():
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset)
    folder = f"ram://{uuid.uuid4().hex}/run"
    # What a killed writer has left.
    tf.io.gfile.makedirs(f"{folder}/step-00000099")
    tf.io.gfile.GFile(f"{folder}/step-00000099/state.npz", "w").close()

    found = interrupted(strategy, shuffled_dataset, folder, after=10)

    assert_equal(found, expected, strategy)
    kept = {name.rstrip("/") for name in tf.io.gfile.listdir(folder)}
    assert kept == {f"step-{step:08d}" for step in (8, 12, 16, 20, 21)}
    model = make_model(strategy)
    assert len(kerasdist.warm_start(model, folder).restored) == len(model.weights)
    tf.io.gfile.rmtree(folder)


class SlowWriting:
    """Lets a folder write no earlier than it is told to."""

    def __init__(self, monkeypatch):
        self.may_write, self.calls = threading.Event(), []
        write = Folder.write

        def slow_write(folder, step, *arguments):
            self.calls.append((step, threading.current_thread() is threading.main_thread()))
            assert self.may_write.wait(30)
            return write(folder, step, *arguments)

        monkeypatch.setattr(Folder, "write", slow_write)


def saved_beside(folder, **arguments):
    """Returns what saves beside the training: here after each epoch of 7 steps."""
    return Checkpoint(folder, every_secs=1000, keep_best=3, monitor="loss", **arguments)


@each_kind_of_strategy
def test_what_is_saved_every_so_many_seconds_is_written_beside_the_training(
    strategy, monkeypatch, tmp_path
):
    slow, weights = SlowWriting(monkeypatch), {}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations.numpy())
            weights[step] = self.model.get_weights()
            # Steps are made while the first one is written.
            if slow.calls and step == slow.calls[0][0] + 3:
                slow.may_write.set()

    model, _ = train(strategy, arrays, [saved_beside(tmp_path), Watch()])

    assert slow.calls == [(7, False), (14, False), (21, True)]
    model.load_weights(tmp_path / "step-00000007/model.weights.h5")
    for ours, theirs in zip(model.get_weights(), weights[7], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_run_that_is_saved_beside_it_ends_as_one_that_was_not_interrupted(tmp_path):
    strategy = strategies.get("one device")
    expected = uninterrupted(strategy, shuffled_dataset)

    with pytest.raises(Interrupted):
        train(strategy, shuffled_dataset, [saved_beside(tmp_path), Interrupt(10)])
    second = saved_beside(tmp_path)
    found = train(strategy, shuffled_dataset, [second])

    assert second.resumed_from == str(tmp_path / "step-00000007")  # It is awaited.
    assert_equal(found, expected, strategy)


@pytest.mark.filterwarnings("ignore:The checkpoint of step")  # The later ones.
@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_what_cannot_be_written_beside_the_training_is_told(on_error, monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(Folder, "write", refuse)
    told = (
        pytest.warns(UserWarning, match=r"The checkpoint of step 7 cannot be written .* No space")
        if on_error == "warn"
        else pytest.raises(OSError, match="No space left")
    )
    with told:
        train(strategies.get("one device"), arrays, [saved_beside(tmp_path, on_error=on_error)])


def test_the_record_can_be_read_by_a_person(tmp_path):
    train(strategies.get("one device"), arrays, [Checkpoint(tmp_path)], epochs=1)

    record = json.loads((tmp_path / "step-00000007/checkpoint.json").read_text())
    assert (record["updates"], record["epoch"], record["step"]) == (7, 1, 0)
    assert record["versions"]["keras"] == keras.__version__


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every_steps": 0}, ValueError, "every_steps=0"),
        ({"every_steps": 1, "every_secs": 1}, ValueError, "Give one of"),
        ({"keep": 0}, ValueError, "keep=0"),
        ({"monitor": 3}, TypeError, "monitor=3"),
        ({"mode": "least"}, ValueError, "mode='least'"),
        ({"on_error": "x"}, ValueError, "on_error='x'"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        Checkpoint(tmp_path, **arguments)


def test_what_is_in_the_way_of_the_folder_is_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")

    for name, found in (("file", "a file"), ("link", "a link to nothing")):
        with pytest.raises(ValueError, match=f"`directory` must be .*{name}', which is {found}"):
            Checkpoint(tmp_path / name)
    (tmp_path / "absent").mkdir()
    Checkpoint(tmp_path / "link")


class Tell(keras.callbacks.Callback):
    """Tells this process to end, twice, in the middle of a step."""

    def __init__(self, after=9):
        super().__init__()
        self._after = after

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self._after:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)


@each_kind_of_strategy
def test_term_is_answered_with_a_checkpoint_after_the_step(strategy, tmp_path):
    expected = uninterrupted(strategy, shuffled_dataset)
    with pytest.raises(SystemExit) as error:
        train(strategy, shuffled_dataset, [Checkpoint(tmp_path, every_steps=100), Tell()])
    assert error.value.code == 143
    assert names(tmp_path) == ["step-00000010"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    found = train(strategy, shuffled_dataset, [Checkpoint(tmp_path, every_steps=100)])

    assert_equal(found, expected, strategy)


def test_term_in_a_short_last_call_waits_for_the_end_of_the_epoch(tmp_path):
    def make(strategy):
        return make_model(strategy, steps_per_execution=3)

    strategy = strategies.get("one device")
    with pytest.raises(SystemExit):  # The epoch has 7 steps: the last call has one.
        train(strategy, arrays, [Checkpoint(tmp_path, every_steps=100), Tell(after=6)], make=make)

    saved = Folder(str(tmp_path)).newest()
    assert saved is not None
    assert (saved.record["epoch"], saved.record["step"]) == (1, 0)


def test_term_between_two_epochs_saves_nothing_twice(monkeypatch, tmp_path):
    def tell(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    strategy = strategies.get("one device")
    steps, write = [], Folder.write
    monkeypatch.setattr(Folder, "write", lambda *given: (steps.append(given[1]), write(*given)))
    # After the first epoch, and when the second one goes on.
    for hook in ("on_epoch_end", "on_train_begin"):
        callbacks = [Checkpoint(tmp_path), keras.callbacks.LambdaCallback(**{hook: tell})]
        with pytest.raises(SystemExit):
            train(strategy, shuffled_dataset, callbacks)
        assert steps == [7]

    found = train(strategy, shuffled_dataset, [Checkpoint(tmp_path)])

    assert_equal(found, uninterrupted(strategy, shuffled_dataset), strategy)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_test_begin", "on_epoch_end"])
def test_term_after_the_last_step_is_answered_at_the_end_of_fit(hook, tmp_path):
    strategy = strategies.get("one device")

    class TellAtEnd(keras.callbacks.Callback):
        def tell(self, *_, **__):
            if int(self.model.optimizer.iterations.numpy()) == 21:
                os.kill(os.getpid(), signal.SIGTERM)

    tell = TellAtEnd()
    setattr(tell, hook, tell.tell)
    with pytest.raises(SystemExit) as error:
        train(strategy, arrays, [Checkpoint(tmp_path), tell], validation_data=arrays())
    assert error.value.code == 143
    assert names(tmp_path)[-1] == "step-00000021"

    found = train(strategy, arrays, [Checkpoint(tmp_path)], validation_data=arrays())

    assert_equal(found, train(strategy, arrays, validation_data=arrays()), strategy)


def test_term_is_left_to_the_program_without_save_on_term(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
    callbacks = [Checkpoint(tmp_path, every_steps=100, save_on_term=False), Tell()]
    try:
        train(strategies.get("one device"), shuffled_dataset, callbacks)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard
    assert names(tmp_path) == ["step-00000021"]


def test_summaries_have_no_gap_and_no_step_twice(tmp_path):
    strategy = strategies.get("one device")
    train(strategy, arrays, [Summaries(tmp_path / "whole", every_steps=2)])
    parts, run = tmp_path / "parts", tmp_path / "run"
    first, second = (
        [Summaries(parts, every_steps=2), Checkpoint(run, every_steps=4)] for _ in range(2)
    )
    with pytest.raises(Interrupted):
        train(strategy, arrays, [*first, Interrupt(11)])
    train(strategy, arrays, second)

    whole, found = (event_files.numbers(tmp_path / name) for name in ("whole", "parts"))
    assert list(found["loss"]) == list(whole["loss"]) == list(range(2, 21, 2))
    assert list(found["epoch_loss"]) == [7, 14, 21]


@pytest.mark.parametrize("data", [arrays, augmented, generator])
def test_tensorflow_is_not_asked_for_a_state_that_it_does_not_have(data, capfd, tmp_path):
    arguments = {"steps_per_epoch": 7} if data is generator else {"shuffle": True}
    train(strategies.get("one device"), data, [Checkpoint(tmp_path)], epochs=1, **arguments)

    assert "OP_REQUIRES" not in capfd.readouterr().err


def test_a_model_that_is_saved_into_the_same_folder_is_left_alone(tmp_path):
    """Checkpoints remove what a killed writer of theirs has left, also while others write."""
    folder = Folder(str(tmp_path))

    class Clean(keras.layers.Dense):
        def save_own_variables(self, store):
            folder.keep(set())
            super().save_own_variables(store)

    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), Clean(1)])
    model.save(tmp_path / "model.keras")

    assert os.listdir(tmp_path) == ["model.keras"]
