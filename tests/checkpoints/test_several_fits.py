"""A program of several `fit` into one folder, which is killed and started again."""

import os
import shutil
import signal
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import Checkpoint, Summaries
from kerasdist.checkpoints import Folder
from tests import event_files, strategies
from tests.cases import crossed, exhaustive

X = np.random.default_rng(2).normal(size=(12, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
FIT = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


class Killed(Exception):
    """The program is killed."""


class Kill(keras.callbacks.Callback):
    """Ends `fit` with its `after`th step; 0 for never."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Killed


class Encoder(keras.layers.Layer):
    """Has a layer that nothing calls, as published blocks do."""

    def __init__(self):
        super().__init__()
        self.dense, self.unused = keras.layers.Dense(3, "tanh"), keras.layers.Dense(7)

    def call(self, x):
        return self.dense(x)


def make(optimizer="adam", *more):
    keras.utils.set_random_seed(4)
    with strategies.get("one device").scope():
        layers = [keras.Input((4,)), *more, keras.layers.Dense(1)]
        model = keras.Sequential(layers, name="net")
        model.compile(optimizer, "mse")
    return model


def train(folder, *, between, killed_after=0, summaries=None):
    """Trains twice; returns the weights and both histories."""
    model, histories = make(), []
    for number in range(2):
        if number:
            between(model)
        callbacks = [Checkpoint(folder, every_steps=2), Kill(killed_after if number else 0)]
        if summaries:
            callbacks.append(Summaries(summaries, every_steps=1, activations=False))
        histories.append(model.fit(X, Y, callbacks=callbacks, **FIT).history)
    return model.get_weights(), histories


def nothing(model):
    pass


def compile_anew(model):
    with strategies.get("one device").scope():
        model.compile("adam", "mse")


def add_weights(model):
    with strategies.get("one device").scope():
        model.layers[-1].enable_lora(2)
        model.compile("adam", "mse")


@pytest.mark.parametrize("between", [*exhaustive(nothing, compile_anew), add_weights])
@pytest.mark.parametrize("killed_after", [5, *exhaustive(1)])
def test_weights_and_histories_are_those_of_a_run_that_was_not_killed(
    between, killed_after, tmp_path
):
    expected = train(tmp_path / "whole", between=between)
    with pytest.raises(Killed):
        train(tmp_path / "killed", between=between, killed_after=killed_after)

    weights, histories = train(tmp_path / "killed", between=between)

    for ours, theirs in zip(weights, expected[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    for ours, theirs in zip(histories, expected[1], strict=True):
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("between", [compile_anew, *exhaustive(nothing)])
def test_the_summaries_of_a_fit_that_is_over_stay(between, tmp_path):
    def run(folder, **arguments):
        return train(folder, between=between, summaries=folder / "logs", **arguments)

    run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "killed", killed_after=5)
    run(tmp_path / "killed")

    found, expected = (
        sorted(each for each in event_files.scalars(folder / "logs" / "train") if "loss" in each[0])
        for folder in (tmp_path / "killed", tmp_path / "whole")
    )
    assert found == expected


def check_resumed(tmp_path, run, *, after):
    """Checks that a run ends with the weights of one that is not killed `after` so many steps.

    Args:
        tmp_path: Where both save.
        run: Called with a folder and further callbacks; returns the weights.
        after: Steps.
    """
    expected = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "killed", Kill(after))
    for ours, theirs in zip(run(tmp_path / "killed"), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*it looks like it has unbuilt state")
def test_a_model_with_a_layer_that_nothing_calls_is_resumed(tmp_path):
    def run(folder, *callbacks):
        keras.utils.set_random_seed(5)
        model = make("adam", Encoder())
        model.fit(X, Y, callbacks=[Checkpoint(folder, every_steps=2), *callbacks], **FIT)
        return model.get_weights()

    check_resumed(tmp_path, run, after=5)


def test_averages_that_are_swapped_in_are_swapped_back(tmp_path):
    def run(folder, *callbacks):
        model = make(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        given = [Checkpoint(folder), swap, *callbacks]
        model.fit(X, Y, callbacks=given, **(FIT | {"epochs": 4}))
        return model.get_weights()

    check_resumed(tmp_path, run, after=8)


def test_two_checkpoints_would_resume_twice(tmp_path):
    callbacks = [Checkpoint(tmp_path / "steps", every_steps=2), Checkpoint(tmp_path / "epochs")]

    with pytest.raises(ValueError, match=r"several Checkpoint.* Give one: `every_steps`"):
        make().fit(X, Y, callbacks=callbacks, **FIT)


def test_outside_of_fit_there_is_nothing_to_save(tmp_path):
    model = make()
    model.fit(X, Y, **FIT)
    callbacks = keras.callbacks.CallbackList([Checkpoint(tmp_path)], model=model)

    with pytest.raises(RuntimeError, match=r"in `fit` alone. Give it to `model.fit\(callbacks="):
        callbacks.on_train_begin()


@pytest.mark.filterwarnings("ignore:The checkpoint of step")
def test_a_file_in_the_place_of_a_checkpoint_is_none(tmp_path):
    make().fit(X, Y, callbacks=[Checkpoint(tmp_path, every_steps=3)], **FIT)
    (tmp_path / "step-00000009").write_text("of somebody")

    checkpoint = Checkpoint(tmp_path, every_steps=3)
    make().fit(X, Y, callbacks=[checkpoint], **(FIT | {"epochs": 3}))

    assert checkpoint.resumed_from == str(tmp_path / "step-00000006")


def outcome_between(model, history, stopping):
    """What a program sees, and saves, after a `fit`."""
    return [
        model.evaluate(X, Y, verbose=0),
        float(model.optimizer.iterations),
        stopping.best,
        *history["loss"],
        *model.get_weights(),
    ]


def fit_three_times(folder, *callbacks, loops=3):
    """Trains `loops` times; returns what there is after each `fit`."""
    model, outcomes = make(), []
    for number in range(loops):
        if number == 1:
            compile_anew(model)
        stopping = keras.callbacks.EarlyStopping("loss", patience=9)
        own = [Checkpoint(folder, every_steps=2, keep=1), stopping, *callbacks]
        history = model.fit(X, Y, callbacks=own, **FIT).history
        outcomes.append(outcome_between(model, history, stopping))
    return outcomes


def check_outcomes(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for value, expected in zip(one, other, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("killed_after", [15, *exhaustive(3, 8)])
def test_between_them_a_program_has_what_it_had(killed_after, tmp_path):
    expected = fit_three_times(tmp_path / "whole")
    with pytest.raises(Killed):
        fit_three_times(tmp_path / "killed", Kill(killed_after))

    check_outcomes(fit_three_times(tmp_path / "killed"), expected)
    check_outcomes(fit_three_times(tmp_path / "killed"), expected)  # All of it is over.


def tell(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)


def prune(model):
    model.set_weights([np.where(np.abs(each) < 0.5, 0, each) for each in model.get_weights()])


def fit_and_prune(folder, *, optimizer="adam", epochs=(2, 2), **told):
    """Trains and prunes twice; returns the weights after each `fit`.

    Args:
        folder: Where it saves.
        optimizer: That of the model.
        epochs: Of both.
        told: The hook of the second `fit` in which this process is told to end.
    """
    model, weights = make(optimizer), []
    for number in range(2):
        callbacks = [Checkpoint(folder), keras.callbacks.LambdaCallback(**(told if number else {}))]
        model.fit(X, Y, callbacks=callbacks, **(FIT | {"epochs": epochs[number]}))
        weights.append(model.get_weights())
        prune(model)
    return weights


@pytest.mark.parametrize(
    ("hook", "make_optimizer"),
    [
        ("on_train_begin", lambda: "adam"),
        # The first step of the second `fit` is none of the optimizer.
        (
            "on_train_batch_begin",
            lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4),
        ),
    ],
)
def test_the_end_of_a_fit_stays_when_the_next_one_is_told_to_end(hook, make_optimizer, tmp_path):
    expected = fit_and_prune(tmp_path / "whole", optimizer=make_optimizer())
    with pytest.raises(SystemExit):
        fit_and_prune(tmp_path / "told", optimizer=make_optimizer(), **{hook: tell})

    check_outcomes(fit_and_prune(tmp_path / "told", optimizer=make_optimizer()), expected)


def test_the_end_of_a_fit_stays_when_the_next_one_trains_nothing(tmp_path):
    expected = fit_and_prune(tmp_path, epochs=(2, 0))

    check_outcomes(fit_and_prune(tmp_path, epochs=(2, 0)), expected)


@pytest.mark.filterwarnings("ignore:The checkpoint of step 6 cannot be written")
def test_where_the_end_of_a_fit_was_not_written_the_beginning_of_the_next_is(monkeypatch, tmp_path):
    write = Folder.write

    def write_no_end(folder, step, record, *given):
        if record["is_finished"]:
            raise OSError("No space left on device")
        write(folder, step, record, *given)

    monkeypatch.setattr(Folder, "write", write_no_end)
    with pytest.raises(SystemExit):
        fit_and_prune(tmp_path, on_train_begin=tell)

    assert Folder(str(tmp_path)).newest_record()["fit"] == 1


def test_where_the_end_of_a_fit_is_gone_that_is_said(capsys, tmp_path):
    fit_three_times(tmp_path, loops=2)
    shutil.rmtree(tmp_path / "step-00000006")

    fit_three_times(tmp_path, loops=1)

    said = capsys.readouterr().err
    assert "Until then the model has its weights, and not those of this one" in said


def test_the_ends_of_the_last_ten_are_kept(tmp_path):
    fit_three_times(tmp_path, loops=13)

    # The second `fit` compiles: the optimizer counts from 0, and the checkpoints do not.
    assert sorted(int(each.name[5:]) for each in tmp_path.iterdir()) == list(range(18, 79, 6))


@pytest.mark.parametrize(
    ("killed_after", "is_first"),
    crossed([2, 8, 16], [True, False], kept=[(8, True)]),
)
def test_backups_of_keras_beside_it_change_nothing(killed_after, is_first, tmp_path):
    def run(folder, *callbacks):
        model = make()
        own = [
            Checkpoint(folder, every_steps=7),
            keras.callbacks.BackupAndRestore(folder / "backup"),
        ]
        own = own if is_first else own[::-1]
        model.fit(X, Y, callbacks=[*own, *callbacks], **(FIT | {"epochs": 6}))
        return model.get_weights()

    check_resumed(tmp_path, run, after=killed_after)


def test_fewer_epochs_than_were_trained_are_over(capsys, tmp_path):
    def run(epochs, *callbacks):
        model = make()
        own = [Checkpoint(tmp_path, every_steps=2), *callbacks]
        return model.fit(X, Y, callbacks=own, **(FIT | {"epochs": epochs})).history

    with pytest.raises(Killed):
        run(5, Kill(11))

    assert len(run(2)["loss"]) == 3
    assert "is finished: 10 steps, 4 epochs." in capsys.readouterr().err


def caches(kind, folder):
    order = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(12, seed=3)
    return {
        "in memory": lambda: order.cache().batch(4),
        "and shuffled again": lambda: order.cache().shuffle(12, seed=4).batch(4),
        "of batches": lambda: order.batch(4).cache(),
        "in a file": lambda: order.cache(str(folder / "cache")).batch(4).prefetch(2),
    }[kind]()


@pytest.mark.parametrize(
    ("killed_after", "kind"),
    crossed(
        [2, 5, 8],
        ["in memory", "and shuffled again", "of batches", "in a file"],
        kept=[(8, "and shuffled again"), (5, "in a file")],
    ),
)
def test_data_that_is_cached_comes_in_the_same_order(kind, killed_after, tmp_path):
    def run(folder, *callbacks):
        model = make()
        folder.mkdir(exist_ok=True)
        arguments = {"epochs": 4, "shuffle": False, "verbose": 0}
        data = caches(kind, folder)
        own = [Checkpoint(folder / "checkpoints", every_steps=2), *callbacks]
        model.fit(data, callbacks=own, **arguments)
        return model.get_weights()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The dataset has other transformations")
        check_resumed(tmp_path, run, after=killed_after)
