"""Summaries: what is in the event files, against training written out by hand."""

import functools
import os
import tempfile
from datetime import datetime
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import (
    GradientAccumulation,
    GradientClipping,
    LossAverages,
    Summaries,
    summaries,
)
from kerasdist.parity import models
from kerasdist.parity.data import examples
from kerasdist.training.report.event_file import EventFile
from kerasdist.training.report.update_counter import UpdateCounter
from tests import event_files, strategies
from tests.callbacks import hand_loop
from tests.cases import exhaustive
from tests.clock import Clock
from tests.strategies import each_kind_of_strategy, each_strategy, each_with_parameter_servers

pytestmark = pytest.mark.thorough


def gradients_of(truth):
    """Returns the gradient of each step of a hand loop, from plain SGD's changes."""
    return [
        [(old - new) / 0.1 for old, new in zip(*pair, strict=True)]
        for pair in zip(truth.trajectory, truth.trajectory[1:], strict=False)
    ]


def plain_sgd():
    return keras.optimizers.SGD(0.1)


def paths_of(model):
    return [variable.path for variable in model.trainable_variables]


def norm(value):
    return float(np.sqrt(np.sum(np.square(value))))


@each_strategy
def test_numbers_are_those_of_the_global_batch_and_the_weights_stay_bit_equal(strategy, tmp_path):
    plain, model = (hand_loop.make_model(strategy, plain_sgd) for _ in range(2))
    hand_loop.fit(plain, [GradientClipping(norm=0.05)])
    hand_loop.fit(model, [GradientClipping(norm=0.05), Summaries(tmp_path, every_steps=5)])

    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    truth = hand_loop.train(
        lambda gradients, step: hand_loop.clip_norm(gradients, 0.05), update=hand_loop.sgd(0.1, 0)
    )
    found = event_files.numbers(tmp_path / "train")
    np.testing.assert_allclose(
        list(found["loss (raw)"].values()), [truth.losses[4], truth.losses[9]], atol=1e-5
    )
    np.testing.assert_allclose(
        list(found["loss"].values()),
        [np.mean(truth.losses[:5]), np.mean(truth.losses[5:10])],
        atol=1e-5,
    )
    assert list(found["loss"]) == [5, 10]
    assert found["learning_rate"] == {5: np.float32(0.1), 10: np.float32(0.1)}
    for path, before, after in zip(
        paths_of(model), truth.trajectory[4], truth.trajectory[5], strict=True
    ):
        applied = norm(after - before) / 0.1
        assert found[f"gradient_norm_applied/{path}"][5] == pytest.approx(applied, abs=1e-5)
        ratio = norm(after - before) / norm(before)
        assert found[f"update_ratio/{path}"][5] == pytest.approx(ratio, abs=1e-5)


@each_strategy
def test_norms_and_histograms_of_gradients_and_weights(strategy, tmp_path):
    model = hand_loop.make_model(strategy, plain_sgd)
    hand_loop.fit(model, [Summaries(tmp_path, every_steps=7)])

    truth = hand_loop.train(update=hand_loop.sgd(0.1, 0))
    gradients = gradients_of(truth)[6]
    numbers = event_files.numbers(tmp_path / "train")
    histograms = event_files.histograms(tmp_path / "train")
    for path, gradient, weight in zip(paths_of(model), gradients, truth.trajectory[7], strict=True):
        assert numbers[f"gradient_norm/{path}"][7] == pytest.approx(norm(gradient), abs=1e-5)
        assert_is_of(histograms[f"gradients/{path}"][7], gradient)
        assert_is_of(histograms[f"weights/{path}"][7], weight)
    total = norm(np.concatenate([each.ravel() for each in gradients]))
    assert numbers["gradient_norm/global"][7] == pytest.approx(total, abs=1e-5)


def assert_is_of(rows, values):
    assert rows[:, 2].sum() == values.size
    assert rows[0, 0] == pytest.approx(values.min(), abs=1e-5)
    assert rows[-1, 1] == pytest.approx(values.max(), abs=1e-5)


def test_layers_with_the_share_of_zeros_in_what_they_give(tmp_path, caplog):
    with strategies.get("one device").scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu", name="first"),
                keras.layers.Dense(1, name="last"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = examples(16)
    folder = tmp_path / "lr 0.1"
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[Summaries(folder, every_steps=1)])

    assert f"python -m kerasdist show '{folder}'" in caplog.text  # As a shell reads it.
    outputs = keras.ops.convert_to_numpy(model.layers[0](x))
    sparsity = event_files.numbers(folder / "train")["sparsity/first"][1]
    assert 0 < sparsity < 1
    assert sparsity == pytest.approx(np.mean(outputs == 0))
    assert_is_of(event_files.histograms(folder / "train")["activations/first"][1], outputs)


def test_what_each_regularizer_adds_to_the_loss_before_and_after_a_step(tmp_path):
    with strategies.get("2 replicas").scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, name="first", kernel_regularizer=keras.regularizers.L2(0.1)),
                keras.layers.Dense(1, name="last", bias_regularizer=keras.regularizers.L1(0.5)),
            ],
            name="net",
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.layers[1].bias.assign([3.0])

    def added():
        kernel, bias = model.layers[0].kernel.numpy(), model.layers[1].bias.numpy()
        first, last = 0.1 * np.sum(kernel**2), 0.5 * np.sum(abs(bias))
        return {"/net/first/kernel": first, "/net/last/bias": last, "": first + last}

    before = added()
    model.fit(*examples(16), verbose=0, callbacks=[Summaries(tmp_path, every_steps=1)])
    after = added()

    found, start = event_files.numbers(tmp_path / "train"), "regularization_loss"
    tags = {tag: each[1] for tag, each in found.items() if tag.startswith(start)}
    assert abs(after["/net/last/bias"] - before["/net/last/bias"]) > 0.01
    assert tags == pytest.approx(
        {f"{start}{name} (raw)": number for name, number in after.items()}
        | {f"{start}{name}": (number + before[name]) / 2 for name, number in after.items()},
        rel=1e-5,
    )


class Hidden(keras.Model):
    """One of its layers is called in a condition, and one not at all."""

    def __init__(self):
        super().__init__()
        self.inside, self.last = (keras.layers.Dense(6, name=name) for name in ("inside", "last"))
        self.unused = keras.layers.Dense(2, name="unused")
        self.unused.build((None, 6))

    def call(self, x):
        return self.last(tf.cond(tf.reduce_sum(x) < 1e9, lambda: self.inside(x), lambda: x))


def test_nothing_is_written_of_what_the_step_does_not_have(tmp_path):
    with strategies.get("2 replicas").scope():
        model = Hidden()
        model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="Gradients do not exist for variables ..unused"):
        model.fit(*examples(16), verbose=0, callbacks=[Summaries(tmp_path, every_steps=1)])

    folder = tmp_path / "train"
    tags = event_files.numbers(folder).keys() | event_files.histograms(folder).keys()
    assert {"sparsity/last", "activations/last", "weights/hidden/inside/kernel"} <= tags
    assert not [tag for tag in tags if tag.endswith("y/inside") or tag.endswith("s/inside")]
    assert not [tag for tag in tags if "unused" in tag]


@each_kind_of_strategy
@pytest.mark.parametrize(
    "arguments",
    [
        {"own_train_step": True},
        {"steps_per_execution": 3},
        *exhaustive(
            {"run_eagerly": True},
            {"dtype": "mixed_float16"},
            {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))},
        ),
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_every_way_of_training_is_recorded(strategy, arguments, tmp_path):
    model = hand_loop.make_model(strategy, **arguments)
    hand_loop.fit(model, [Summaries(tmp_path, every_steps=6)])

    found = event_files.numbers(tmp_path / "train")
    name = "my_loss" if "own_train_step" in arguments else "loss"
    assert len(found[f"{name} (raw)"]) == 2
    assert found["gradient_norm/global"].keys() == found[name].keys()
    assert all(0 < value < 100 for value in found["gradient_norm/global"].values())


def test_a_step_that_is_compiled_by_xla(tmp_path):
    truth, model = (
        hand_loop.make_model(strategies.get("one device"), plain_sgd, jit_compile=jit)
        for jit in (False, True)
    )
    for each, folder in ((truth, "truth"), (model, "xla")):
        hand_loop.fit(each, [Summaries(tmp_path / folder, every_steps=7)])

    theirs, ours = (event_files.numbers(tmp_path / name / "train") for name in ("truth", "xla"))
    for tag in theirs:
        if tag.startswith(("gradient", "update", "sparsity", "loss")):
            assert ours[tag] == pytest.approx(theirs[tag], abs=1e-5), tag


def test_steps_are_updates_where_gradients_are_accumulated(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=3), Summaries(tmp_path, every_steps=2)])

    found = event_files.numbers(tmp_path / "train")
    assert list(found["loss"]) == list(found["update_ratio/hidden/bias"]) == [2, 4]


@pytest.mark.exhaustive  # As in test_own_optimizers.py.
def test_each_of_several_optimizers_is_recorded(tmp_path):
    model = hand_loop.make(strategies.get("2 replicas"), models.with_two_optimizers)
    hand_loop.fit(model, [Summaries(tmp_path, every_steps=3)], epochs=1)

    found = event_files.numbers(tmp_path / "train")
    assert all(found[f"gradient_norm/{path}"][3] > 0 for path in paths_of(model))


def test_the_logs_of_each_epoch_and_the_plan(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"), metrics=["mae"])
    foreign = {"when": datetime.now(), "none": None, "ragged": [[1], [1, 2]], "text": "x"}
    log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(foreign))
    history = hand_loop.fit(model, [log, Summaries(tmp_path)], validation_data=examples(20))

    train, validation = (event_files.numbers(tmp_path / role) for role in ("train", "validation"))
    assert list(train["epoch_mae"].values()) == pytest.approx(history["mae"])
    assert not {f"epoch_{name}" for name in foreign} & train.keys()
    assert list(validation["epoch_mae"]) == [7, 14]
    assert list(validation["epoch_loss"].values()) == pytest.approx(history["val_loss"])
    assert "2 copies of the model" in event_files.texts(tmp_path / "train")["plan"]
    assert sum(bool(event.graph_def) for event in event_files.events(tmp_path / "train")) == 1


def test_a_model_that_has_made_fewer_steps_leaves_the_events_of_another_in_the_folder(tmp_path):
    for num_steps, seen in ((0, [7, 14]), (5, [7, 14, 7, 14])):
        model = hand_loop.make_model(strategies.get("one device"))
        model.optimizer.iterations.assign(num_steps)
        hand_loop.fit(model, [Summaries(tmp_path, every_steps=7)])

        found = event_files.scalars(tmp_path / "train")
        assert [step for tag, step in found if tag == "learning_rate"] == seen


def test_what_is_not_wanted_is_not_written(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    summaries = Summaries(
        tmp_path, 5, weights=False, gradients=".*kernel", activations=["head"], graph=False
    )
    hand_loop.fit(model, [summaries])

    found = set(event_files.histograms(tmp_path / "train"))
    kernels = [path for path in paths_of(model) if path.endswith("kernel")]
    assert found == {"activations/head", *(f"gradients/{path}" for path in kernels)}


def test_seconds_between_summaries(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [Summaries(tmp_path, every_secs=0)], epochs=4)

    steps = list(event_files.numbers(tmp_path / "train")["loss"])
    assert steps == list(range(1, 29))


def test_a_record_is_of_the_step_that_it_is_written_for(tmp_path, monkeypatch):
    truth, model = (hand_loop.make_model(strategies.get("one device")) for _ in range(2))
    hand_loop.fit(truth, [Summaries(tmp_path / "truth", every_steps=1)], epochs=10)
    clock = Clock()
    monkeypatch.setattr(summaries, "UpdateCounter", functools.partial(UpdateCounter, clock=clock))
    tick = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: clock.sleep(1.0))
    hand_loop.fit(model, [Summaries(tmp_path / "model", every_secs=20), tick], epochs=10)

    theirs, ours = (event_files.numbers(tmp_path / name / "train") for name in ("truth", "model"))
    # After the first step it has only measured how long it took.
    assert list(ours["loss"]) == [20, 40, 60]
    for tag in ("gradient_norm/global", "update_ratio/hidden/bias"):
        assert ours[tag] == {step: theirs[tag][step] for step in ours["loss"]}


@each_strategy
def test_steps_between_are_compiled_without_conditions(strategy, tmp_path):
    graphs = {}
    for name, callbacks in (("without", [LossAverages()]), ("with", [Summaries(tmp_path)])):
        model = hand_loop.make_model(strategy)
        hand_loop.fit(model, callbacks)
        graphs[name] = model.train_function._graphs._graphs
    (plain,), between = graphs["without"].values(), graphs["with"]["next", True, False]

    assert conditions_of(graphs["with"]["next", False, False]) > conditions_of(plain)
    assert conditions_of(between) == conditions_of(plain)


class DrawsInItsGraph(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            noise = tf.cond(tf.size(x) > 0, lambda: tf.random.normal(tf.shape(y)), lambda: y)
            loss = tf.reduce_mean(tf.square(self(x, training=True) + noise - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.exhaustive
@each_kind_of_strategy
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_numbers_that_the_graph_draws_stay_bit_equal(strategy, steps_per_execution, tmp_path):
    weights = []
    for callbacks in ([], [], [Summaries(tmp_path, every_steps=5)]):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            inputs = keras.Input((6,))
            model = DrawsInItsGraph(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", steps_per_execution=steps_per_execution)
        hand_loop.fit(model, callbacks)
        weights.append(model.get_weights()[0])

    np.testing.assert_array_equal(weights[1], weights[0])
    np.testing.assert_array_equal(weights[2], weights[0])


def conditions_of(function) -> int:
    (concrete,) = function._list_all_concrete_functions()
    return sum(each.type in ("If", "StatelessIf") for each in concrete.graph.get_operations())


def test_training_goes_on_where_the_folder_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    truth, model = (hand_loop.make_model(strategies.get("one device")) for _ in range(2))
    hand_loop.fit(truth)

    with pytest.warns(UserWarning, match="Summaries cannot be written to .*file/train"):
        hand_loop.fit(model, [Summaries(tmp_path / "file", every_steps=1)])

    said = caplog.text
    assert f"There are no summaries in {tmp_path}/file: they could not be written." in said
    assert "tensorboard" not in said
    hand_loop.assert_same(model, truth.get_weights(), 0)
    with pytest.raises((OSError, Exception), match="file"):
        hand_loop.fit(model, [Summaries(tmp_path / "file", on_error="raise")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 0}, "every_steps=0"),
        ({"every_steps": 5, "every_secs": 2}, "Give one of"),
        ({"every_secs": -1}, "every_secs=-1"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"weights": 3}, "weights=3"),
        ({"gradients": ["("]}, "not a regular expression"),
        ({"gradients": [3]}, "`gradients` must hold regular expressions. Received: 3 of type int"),
        ({"graph": "no"}, "graph='no'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message.replace("(", r"\(")):
        Summaries(tmp_path, **arguments)


def test_two_of_them_do_not_write_into_one_folder(tmp_path):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    twice = [Summaries(tmp_path, every_steps=2), Summaries(f"{tmp_path}/", every_secs=1)]

    with pytest.raises(
        ValueError, match=f"Several Summaries with log_dir='{tmp_path}' .* Give one"
    ):
        hand_loop.fit(model, twice)

    assert model.optimizer.iterations == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [list, lambda variables: variables[0]])
def test_variables_are_no_names(tmp_path, kind):
    model = hand_loop.make_model(strategies.get("one device"))

    with pytest.raises(TypeError, match=r"`weights` must .*regular expressions. .*hidden/kernel"):
        Summaries(tmp_path, weights=kind(model.trainable_variables))


def test_an_error_in_fit_leaves_no_file_open(tmp_path, monkeypatch):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("stop")

    closed = []
    close = EventFile.close
    monkeypatch.setattr(EventFile, "close", lambda file: (closed.append(file), close(file)))
    model = hand_loop.make_model(strategies.get("one device"))
    with pytest.raises(KeyError):
        hand_loop.fit(model, [Summaries(tmp_path, every_steps=1), Fails()])

    assert len(closed) == 2


def test_a_layer_that_does_not_exist_is_answered_with_the_closest(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))

    with pytest.raises(ValueError, match=r"'hiden' in `activations` .* Closest: hidden"):
        hand_loop.fit(model, [Summaries(tmp_path, activations=["hiden"])])


@pytest.mark.processes
def test_several_workers_write_once_the_numbers_of_all(tmp_path):
    truth = hand_loop.make_model(strategies.get("one device"), plain_sgd)
    hand_loop.fit(truth, [Summaries(tmp_path, every_steps=5)])
    theirs = event_files.numbers(tmp_path / "train")

    chief, worker = strategies.run_on_workers(summaries_of_worker, "2 workers")

    assert worker == {}
    assert {"loss", "loss (raw)", "gradient_norm/global"} <= chief.keys()
    for tag in theirs:
        if tag.startswith(("gradient", "update", "loss", "epoch")):
            assert chief[tag] == pytest.approx(theirs[tag], abs=1e-5), tag


def summaries_of_worker(strategy):
    with tempfile.TemporaryDirectory() as folder:
        model = hand_loop.make_model(strategy, plain_sgd)
        hand_loop.fit(model, [Summaries(folder, every_steps=5)])
        return event_files.numbers(Path(folder))


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_over_parameter_servers(workers):
    (found,) = strategies.run_on_workers(summaries_of_chief, workers)

    assert {"loss", "learning_rate", "sparsity/hidden", "examples_per_second"} <= found.keys()
    assert len(found["gradient_norm/global"]) >= 1
    assert all(0 < value < 100 for value in found["gradient_norm/global"].values())
    # The gradients of two kernels and two biases.
    assert set(found["gradient_bytes/ps 0"].values()) == {4 * (6 * 8 + 8 + 8 + 1)}
    # Nobody else updates them.
    assert set(found["staleness/mean"].values()) == set(found["staleness/max"].values()) == {0.0}
    assert all(each > 0 for each in found["steps_per_second/worker 0"].values())
    shares = [found[f"{share}_share"] for share in ("input_wait", "communication", "between_steps")]
    assert all(
        0 <= sum(each) <= 1 for each in zip(*(share.values() for share in shares), strict=True)
    )


def summaries_of_chief(strategy):
    with tempfile.TemporaryDirectory() as folder:
        model = hand_loop.make_model(strategy, plain_sgd)
        hand_loop.fit(model, [Summaries(folder, every_steps=5)], epochs=6)
        return event_files.numbers(Path(folder) / "train")


def test_a_callback_that_changes_the_working_directory_changes_no_path(monkeypatch, tmp_path):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    change = keras.callbacks.LambdaCallback(on_train_begin=lambda _: os.chdir("other"))

    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model, [Summaries("runs/1", every_steps=5), change])

    assert not list((tmp_path / "other").iterdir())
    assert os.listdir(tmp_path / "runs/1") == ["train"]
