"""Programs that are killed and started again by the launcher: they end as if nothing had been."""

import contextlib
import functools
import json
import math
import re
import shutil
import signal
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.private import names
from kerasdist.training.context import peers
from kerasdist.training.data import division
from kerasdist.training.epochs import data_states
from kerasdist.training.epochs.own_data import OwnData
from tests import test_warm_start
from tests.callbacks import test_checkpoint, test_checkpoint_foreign
from tests.cluster import outcomes, record_files
from tests.cluster.outcomes import of
from tests.strategies import (
    WORKER_DEPLOYMENTS,
    each_cluster,
    each_with_parameter_servers,
    on_workers,
    run_on_workers,
)

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

# Trains to the end and prints the weights; `act(batch)` runs once in all starts of the program.
PROGRAM = """
import json, os, signal, sys, tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

keras.utils.set_random_seed(7)
tf_config = json.loads(os.environ.get("TF_CONFIG", '{{"task": {{"type": "worker", "index": 0}}}}'))
task = f"{{tf_config['task']['type']}} {{tf_config['task']['index']}}"
folder = Path({folder!r})


class Act(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        if self.num_steps == {at} and task == {task!r} and not (folder / "acted").exists():
            (folder / "acted").touch()
            os.kill(os.getpid(), {signal})


strategy = kerasdist.make_strategy(start_timeout_secs=60)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
rng = np.random.default_rng(0)
x = rng.normal(size=(101, 6)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(101, seed=3).batch(16)
callbacks = [kerasdist.callbacks.Checkpoint(folder / "run", every_steps=4), Act()]
history = model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
if kerasdist.is_chief():
    result = dict(
        weights=[weight.tolist() for weight in model.get_weights()],
        history=history.history,
        updates=int(model.optimizer.iterations.numpy()),
    )
    print("result", json.dumps(result), flush=True)
"""


def killed(task, *options, at=10, number=signal.SIGKILL):
    """Runs a job of which a task is killed once, under a launcher that starts it again."""
    with tempfile.TemporaryDirectory() as folder:
        program = PROGRAM.format(folder=folder, at=at, task=task, signal=int(number))
        return outcomes.launched(program, "--max-restarts=1", *options)


def result_of(outcome):
    assert outcome.codes == [0], outcome.outputs[0][-3000:]
    lines = [line for line in outcome.outputs[0].splitlines() if "result {" in line]
    return json.loads(lines[-1].split("result ", 1)[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Returns the result of two workers that nobody kills."""
    folder = tmp_path_factory.mktemp("undisturbed")
    program = PROGRAM.format(folder=str(folder), at=0, task="none", signal=0)
    return result_of(outcomes.launched(program, "--workers=2"))


def assert_alike(found, expected):
    assert found["updates"] == expected["updates"] == 21
    assert_same(found, expected)


def assert_same(found, expected):
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)
    for name, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-5)


@of(killed, "worker 0", "--workers=2")
def test_the_chief_of_two_workers_is_killed(outcome, undisturbed):
    assert_alike(result_of(outcome), undisturbed)
    assert "No data is read again." in outcome.outputs[0]


@of(killed, "worker 1", "--workers=2", at=13)
def test_another_worker_is_killed(outcome, undisturbed):
    assert_alike(result_of(outcome), undisturbed)


@of(killed, "chief 0", "--workers=2", "--ps=1")
def test_the_chief_beside_parameter_servers_is_killed(outcome):
    found = result_of(outcome)

    assert found["updates"] == 21  # None lost, none twice.
    assert len(found["history"]["loss"]) == 3


@of(killed, "chief 0", "--workers=2", "--ps=1", "--backup=0")
def test_the_chief_of_synchronous_workers_is_killed(outcome):
    options = "--workers=2", "--ps=1", "--backup=0"
    expected = result_of(killed("nobody", *options))

    found = result_of(outcome)
    assert found["updates"] == expected["updates"] == 12  # Of two batches each, or of the last one.
    assert_same(found, expected)


@of(killed, "chief 0", "--workers=2", "--ps=1", "--backup=1")
def test_the_chief_of_backup_workers_is_killed(outcome):
    found = result_of(outcome)

    assert found["updates"] == 21
    assert len(found["history"]["loss"]) == 3


@pytest.mark.exhaustive
@of(killed, "worker 1", "--workers=2", at=6, number=signal.SIGTERM)
def test_term_of_which_the_others_hear_in_the_last_step_of_an_epoch(outcome, undisturbed):
    assert_alike(result_of(outcome), undisturbed)
    assert "step-00000007: step 7, epoch 2 of 3, after 0 of its steps" in outcome.outputs[0]


@of(killed, "worker 1", "--workers=2", at=10, number=signal.SIGTERM)
def test_a_worker_that_is_told_to_end_saves_with_the_others_at_one_step(outcome, undisturbed):
    assert_alike(result_of(outcome), undisturbed)
    assert "Received SIGTERM on worker 1: checkpoint saved in" in outcome.outputs[0]
    assert re.search(r"Resumed from \S+: step 1[12], ", outcome.outputs[0])


@of(killed, "worker 1", "--workers=2", at=21, number=signal.SIGTERM)
def test_all_workers_answer_term_in_the_last_step_at_the_end_of_fit(outcome, undisturbed):
    assert_alike(result_of(outcome), undisturbed)
    assert "Received SIGTERM on worker 1: checkpoint saved in" in outcome.outputs[0]
    assert "is finished: 21 steps, 3 epochs" in outcome.outputs[0]


def warm_started(strategy, folder):
    model = test_warm_start.make_model(strategy)
    kerasdist.warm_start(model, test_warm_start.values_of(test_warm_start.make_model(seed=7)))
    return model.get_weights()


def lora_weights(strategy, folder):
    """Returns the weights of a finished training, and those with which it is found finished."""
    make = test_checkpoint_foreign.with_lora()
    data, weights = test_checkpoint.arrays, []
    for _ in range(2):
        callbacks = [kerasdist.callbacks.Checkpoint(folder), test_checkpoint_foreign.Anew()]
        model, _ = test_checkpoint.train(strategy, data, callbacks, make=make)
        weights.append(model.get_weights())
    return weights


def in_two_runs(strategy, folder):
    """Trains 6 steps and then 11 of epochs of 4, as two programs do, and 11 in one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(101, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16).repeat()

    def train(num_steps, directory):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        history = model.fit(
            data.take(num_steps),
            epochs=math.ceil(num_steps / 4),
            steps_per_epoch=4,
            validation_data=(x[:20], x[:20, :1]),
            shuffle=False,
            verbose=0,
            callbacks=[kerasdist.callbacks.Checkpoint(f"{folder}/{directory}")],
        )
        return [*model.get_weights(), *map(np.asarray, history.history.values())]

    train(6, "in two")
    return train(11, "in two"), train(11, "in one")


class Interrupted(Exception):
    """The program of every worker ends, after the same step."""


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` in the third epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == 14:
            raise Interrupted


def with_own_files(strategy, folder):
    """Trains on files of which each worker reads its own, in one run and in two."""
    paths = record_files.paths(folder.parent)
    return in_one_and_in_two(strategy, folder, lambda: record_files.read(paths).shuffle(9, seed=3))


def prepared_apart():
    """Returns examples that each worker prepares for its own part of the batches."""
    x = np.random.default_rng(1).normal(size=(45, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(x).shuffle(9, seed=3)
    return data.map(lambda x: (x, tf.reduce_sum(x, keepdims=True)))


def with_own_rows(strategy, folder):
    return in_one_and_in_two(strategy, folder, prepared_apart)


def without_places(strategy, folder):
    """Does both without a state in the midst of the data, as if it were too large."""
    with mock.patch.object(data_states, "_MOST_BYTES", -1):
        return [
            question(strategy, folder.with_name(f"{question.__name__} {folder.name}"))
            for question in (with_own_files, with_own_rows)
        ]


def with_own_rows_later(strategy, folder):
    """Goes on with parts of batches that were whole before, as they are on one worker."""
    whole = {(division, "divide"): lambda *_, **__: division.Division()}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The dataset has other transformations")
        return in_one_and_in_two(strategy, folder, prepared_apart, first=whole)


def in_one_and_in_two(strategy, folder, make, first=None):
    """Trains in one run and in two; returns what both give, and what the last one read again.

    Functions in `first` stand in the place of theirs in the first of the two.
    """
    read_again = []

    def read(stock, own, source, num_steps):
        read_again.append(num_steps)
        return stock(own, source, num_steps)

    def train(directory, *others):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", metrics=["mae"])
        data = make().batch(8)
        checkpoint = kerasdist.callbacks.Checkpoint(f"{folder}/{directory}", every_steps=4)
        history = model.fit(
            data, epochs=4, shuffle=False, verbose=0, callbacks=[checkpoint, *others]
        )
        return [*model.get_weights(), *map(np.asarray, history.history.values())]

    expected = train("in one")
    with contextlib.suppress(Interrupted), names.replaced(first or {}):
        train("in two", Interrupt())
    with names.replaced({(OwnData, "read"): read}):
        return train("in two"), expected, read_again


def without_a_shared_disk(strategy, folder):
    """Trains with a folder on each worker; the first one's is gone when it has written to both."""
    own = folder / str(peers.index_of(strategy))
    x = np.random.default_rng(0).normal(size=(101, 6)).astype("float32")

    def train(name, *others, on_every_machine=False):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
        checkpoint = kerasdist.callbacks.Checkpoint(
            own / name, every_steps=4, on_every_machine=on_every_machine
        )
        callbacks = [checkpoint, keras.callbacks.EarlyStopping("loss", patience=9), *others]
        history = model.fit(x, x[:, :1], batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
        return [*model.get_weights(), *map(np.asarray, history.history.values())]

    def interrupt(name, **options):
        with contextlib.suppress(Interrupted):
            train(name, Interrupt(), **options)
        return sorted(path.name for path in (own / name).glob("step-*"))

    expected = train("in one")
    with names.replaced({(peers, "is_first_on_machine"): lambda original, strategy: True}):
        written, found = [interrupt("by the chief")], [train("by the chief")]
        written.append(interrupt("by both", on_every_machine=True))
        if kerasdist.is_chief():
            shutil.rmtree(own / "by both")
        found.append(train("by both", on_every_machine=True))
    last = [sorted(path.name for path in own.glob("by*/step-*"))[-1]]
    return found, expected, written, last


class CompileAtTheEnd(keras.callbacks.Callback):
    """Compiles the model after the last step, or at the end, of the last epoch."""

    def __init__(self, hook: str):
        super().__init__()
        self.hook = hook

    def on_train_batch_end(self, batch, logs=None):
        if self.hook == "step" and batch + 1 == (self.params or {}).get("steps"):
            self.compile()

    def on_epoch_end(self, epoch, logs=None):
        if self.hook == "epoch":
            self.compile()

    def compile(self):
        self.model.compile("sgd", "mse")


def compiled_at_the_end(strategy, folder):
    """Returns the checkpoints of trainings at whose end a callback compiles the model."""
    x = np.ones((32, 4), "float32")
    for hook in ("step", "epoch"):
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        checkpoint = kerasdist.callbacks.Checkpoint(folder / hook)
        callbacks = [CompileAtTheEnd(hook), checkpoint]
        model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=callbacks)
    return [[path.name for path in (folder / hook).iterdir()] for hook in ("step", "epoch")]


def all_of_these(questions, folder, strategy) -> list:
    return [question(strategy, folder / question.__name__) for question in questions]


@functools.cache
def answers(workers) -> list[dict]:
    """Returns what each question gave, on each worker: one cluster runs them all."""
    others = (
        [
            *(with_own_files, with_own_rows, with_own_rows_later, without_places),
            without_a_shared_disk,
        ]
        if workers in WORKER_DEPLOYMENTS
        else [compiled_at_the_end]
    )
    questions = [warm_started, lora_weights, in_two_runs, *others]
    with tempfile.TemporaryDirectory() as folder:
        record_files.write(Path(folder))
        run = functools.partial(all_of_these, questions, Path(folder))
        values = run_on_workers(run, workers, timeout_secs=240)
    return [dict(zip(questions, value, strict=True)) for value in values]


def assert_close(found, expected, *, tolerance=1e-6):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.exhaustive
@each_cluster
def test_warm_start_gives_every_worker_the_values(workers):
    for answer in answers(workers):
        expected = test_warm_start.make_model(seed=7).get_weights()
        assert_close(answer[warm_started], expected, tolerance=0)


@each_cluster
def test_lora_goes_on(workers):
    for answer in answers(workers):
        before, after = answer[lora_weights]
        assert_close(after, before)


@each_cluster
def test_an_epoch_in_which_the_data_ran_out_goes_on_when_there_is_more(workers):
    for answer in answers(workers):
        assert_close(*answer[in_two_runs])


@on_workers
@pytest.mark.parametrize("question", [with_own_files, with_own_rows, with_own_rows_later])
def test_workers_with_their_own_part_of_the_data_read_nothing_again(question, workers):
    for answer in answers(workers):
        found, expected, read_again = answer[question]
        assert_close(found, expected)
        assert sum(read_again) == 0


@on_workers
def test_workers_without_a_place_in_their_files_read_the_epoch_again(workers):
    for answer in answers(workers):
        (*of_files, num_of_files), (*of_rows, num_of_rows) = answer[without_places]
        assert_close(*of_files)
        assert_close(*of_rows)
        assert sum(num_of_files) > 0
        assert sum(num_of_rows) == 0  # They are skipped.


@on_workers
def test_workers_without_a_shared_disk_go_on_from_the_newest_of_all(workers):
    for worker, answer in enumerate(answers(workers)):
        found, expected, written, last = answer[without_a_shared_disk]
        for each in found:
            assert_close(each, expected)
        by_chief, by_both = written
        assert by_chief == ([] if worker else by_both)
        assert by_both[-1] == "step-00000012"
        assert last == ["step-00000028"]


@each_with_parameter_servers
def test_a_callback_may_compile_the_model_at_the_end(workers):
    (answer,) = answers(workers)

    assert list(map(len, answer[compiled_at_the_end])) == [1, 1]
