"""Throughput: lines that say how fast training is."""

import logging
import math
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import GradientAccumulation, StopOnNonFinite, Summaries, Throughput
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_strategy

LINE = r"step (\d+), loss = ([\d.e+-]+) \((\d+) examples/s; ([\d.]+) ms/step"


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "kerasdist"]


@each_strategy
def test_a_line_every_few_steps_with_the_loss_of_the_global_batch(strategy, caplog):
    model = hand_loop.make_model(strategy)
    history = hand_loop.fit(model, [Throughput(every_steps=5)])

    truth = hand_loop.train()
    *said, limit = lines(caplog)
    found: list = [re.match(LINE, line) for line in said]
    assert "Bottleneck: " in limit
    assert [int(each[1]) for each in found] == [5, 10]
    assert [float(each[2]) for each in found] == pytest.approx(
        [truth.losses[4], truth.losses[9]], rel=1e-3
    )
    assert all(rate > 0 for rate in history["examples_per_second"])
    hand_loop.assert_same(model, truth.weights)


def test_the_rate_is_examples_over_seconds_without_compilation_and_validation(caplog):
    model = hand_loop.make_model(strategies.get("2 replicas"))
    start = time.perf_counter()
    throughput = Throughput(every_steps=14)
    hand_loop.fit(model, [throughput], validation_data=examples(500))
    secs = time.perf_counter() - start

    rate = throughput.last
    assert rate is not None
    assert (rate.num_steps, rate.num_examples) == (13, 2 * 101 - 16)
    assert rate.secs < 0.7 * secs  # Two compilations take longer than 13 steps.
    assert rate.examples_per_second == pytest.approx(rate.num_examples / rate.secs)


def test_an_epoch_without_a_step_that_counts_has_no_rate_but_a_log_of_it(tmp_path, capsys):
    model = hand_loop.make_model(strategies.get("one device"))
    arguments = {"batch_size": 101, "epochs": 3, "verbose": 2}
    callbacks = [Throughput(), Summaries(tmp_path), StopOnNonFinite()]
    history = hand_loop.fit(model, callbacks, **arguments)

    first, *_, last = rates = history["examples_per_second"]
    assert len(rates) == 3 and math.isnan(first) and last > 0
    assert "nan" not in capsys.readouterr().out


def test_steps_are_updates_of_the_optimizer(caplog):
    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model, [GradientAccumulation(steps=2), Throughput(every_steps=3)])

    assert [line.split(",")[0] for line in lines(caplog)[:-1]] == ["step 3", "step 6"]


def test_the_last_call_of_an_epoch_has_the_steps_that_there_are():
    model = hand_loop.make_model(strategies.get("2 replicas"), steps_per_execution=100)
    throughput = Throughput(every_steps=1)
    hand_loop.fit(model, [throughput])

    rate = throughput.last
    assert rate is not None
    assert (rate.num_steps, rate.num_examples) == (7, 101)


def test_data_that_is_too_slow_is_named(caplog):
    def slow(x, y):
        return tf.numpy_function(lambda x: (time.sleep(0.02), x)[1], [x], tf.float32), y

    x, y = examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    data = data.map(slow).map(lambda x, y: (tf.ensure_shape(x, [None, 6]), y))
    model = hand_loop.make_model(strategies.get("2 replicas"))
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[Throughput(every_steps=7)])

    *_, line, limit = lines(caplog)
    assert re.search(r"waits for data [5-9]\d% of the time: the input limits it", line)
    assert limit.startswith("Bottleneck: waiting for the next batch, ")


def test_how_much_of_the_device_is_used(caplog):
    model = hand_loop.make_model(strategies.get("one device"))
    throughput = Throughput(every_steps=5, peak_flops=1e9)
    hand_loop.fit(model, [throughput])

    # Two matrix products and two additions of a bias for each example; tanh counts one.
    num_flops = 2 * (6 * 8 + 8 * 1) + 8 + 1
    assert throughput.last is not None
    expected = 3 * num_flops * throughput.last.examples_per_second / 1e9
    (said,) = re.findall(r"MFU ([\d.]+)%", lines(caplog)[-2])
    assert float(said) / 100 == pytest.approx(expected, rel=0.2, abs=0.001)


class Whole(keras.Model):
    """A model whose inputs only its data tells."""

    def __init__(self):
        super().__init__()
        self.convolution = keras.layers.Conv2D(8, 3, padding="same", activation="relu")

    def call(self, inputs):
        return keras.ops.mean(self.convolution(inputs), axis=(1, 2))


def of_any_size():
    inputs = keras.Input((None, None, 3))
    return keras.Model(inputs, Whole()(inputs))


@pytest.mark.parametrize("make", [of_any_size, Whole])
def test_sizes_that_the_model_does_not_know_are_those_of_the_data(make, caplog):
    model = compiled(make)
    throughput = Throughput(every_steps=2, peak_flops=1e6)
    model.fit(IMAGES, LABELS, batch_size=4, verbose=0, callbacks=[throughput])

    # The convolution, its bias and relu; TensorFlow does not count the mean.
    num_flops = 32 * 32 * 8 * (2 * 3 * 3 * 3 + 1 + 1)
    assert throughput.last is not None
    expected = 3 * num_flops * throughput.last.examples_per_second / (1e6 * 2)
    (said,) = re.findall(r"MFU ([\d.]+)%", lines(caplog)[-2])
    assert float(said) / 100 == pytest.approx(expected, rel=0.01)


def test_sizes_that_nobody_knows_are_told_instead_of_a_wrong_share(caplog):
    spec = (tf.TensorSpec([None, None, None, 3]), tf.TensorSpec([None, 8]))
    data = tf.data.Dataset.from_generator(lambda: [(IMAGES, LABELS)] * 2, output_signature=spec)
    with pytest.warns(UserWarning, match="no MFU of model .*: its inputs have no fixed sizes"):
        model = compiled(of_any_size)
        model.fit(data, shuffle=False, verbose=0, callbacks=[Throughput(1, peak_flops=1e6)])

    assert lines(caplog)
    assert not any("MFU" in line for line in lines(caplog))


IMAGES, LABELS = np.ones((8, 32, 32, 3), "float32"), np.zeros((8, 8), "float32")


def compiled(make):
    with strategies.get("2 replicas").scope():
        model = make()
        model.compile("sgd", "mse")
    return model


def test_a_program_without_logging_sees_the_lines(capsys, monkeypatch):
    logger = logging.getLogger("kerasdist")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    hand_loop.fit(hand_loop.make_model(strategies.get("one device")), [Throughput(5)])

    assert "step 5, loss = " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"every_steps": 0}, "every_steps=0"), ({"peak_flops": -1.0}, "peak_flops=-1.0")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Throughput(**arguments)


@pytest.mark.processes
def test_the_chief_says_the_rate_of_all_and_each_worker_the_mean():
    chief, worker = strategies.run_on_workers(lines_of_worker, "2 workers")

    assert re.match(r"step 5, loss = .* examples/s global, \d+ per worker; ", chief[0])
    assert re.match(r"step 5, loss = .* \(\d+ examples/s; ", worker[0])


@pytest.mark.processes
def test_a_slow_worker_is_named_with_what_it_does():
    chief, worker = strategies.run_on_workers(lines_beside_a_slow_callback, "2 workers")

    assert chief[-1].startswith("Bottleneck: worker 1, which keeps the other waiting ")
    assert re.search(r"Of its own time \d+% is between the steps", chief[-1])
    assert "Bottleneck" not in worker[-1]  # It is said once.


def lines_beside_a_slow_callback(strategy):
    def act(batch, logs):
        if strategy.deployment.cluster.worker_index == 1:
            time.sleep(0.05)

    slow = keras.callbacks.LambdaCallback(on_train_batch_end=act)
    return lines_of_worker(strategy, slow)


def lines_of_worker(strategy, *callbacks):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("kerasdist").addHandler(handler)
    hand_loop.fit(hand_loop.make_model(strategy), [*callbacks, Throughput(every_steps=5)])
    return said
