"""The end of an iterator must not keep anybody waiting."""

import subprocess
import sys
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.private import dataset_adapter
from kerasdist.training.epochs.data_source import DataSource
from kerasdist.training.epochs.epoch_iterator import EpochIterator
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy, each_with_parameter_servers


class SlowToEnd:
    """An iterator whose deletion waits, as that of TensorFlow's does now and then."""

    def __init__(self, gate: threading.Event, ended: threading.Event):
        self.gate = gate
        self.ended = ended

    def __iter__(self):
        return self

    def __next__(self):
        return 0

    def __del__(self):
        self.gate.wait(timeout=60)
        self.ended.set()


def test_letting_go_does_not_wait_for_the_iterator():
    gate, ended = threading.Event(), threading.Event()
    source = DataSource(SlowToEnd(gate, ended))
    del source
    # The gate is closed still: had the line above waited for it, this would be set.
    assert not ended.is_set()
    gate.set()
    assert ended.wait(timeout=60)


@pytest.mark.processes
@pytest.mark.parametrize(("is_let_go", "expected"), [(True, "deleted"), (False, "")])
def test_python_waits_at_its_end_for_what_is_being_deleted_and_deletes_no_more(is_let_go, expected):
    program = f"""
import atexit, time

sources = []
atexit.register(sources.clear)  # The last to be called.

from kerasdist.training.epochs.data_source import DataSource

class Slow:
    def __del__(self):
        time.sleep(0.2)
        print("deleted")

sources.append(DataSource(Slow()))
if {is_let_go}:
    sources.clear()
"""
    arguments = [sys.executable, "-c", program]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)

    assert ended.stdout.strip() == expected


@pytest.mark.processes
def test_a_forked_process_waits_for_no_deletion_of_its_parent():
    program = """
import os, sys, threading
from kerasdist.training.epochs.data_source import DataSource

gate = threading.Event()

class Slow:
    def __del__(self):
        gate.wait(60)

source = DataSource(Slow(), is_distributed=True)
del source
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
gate.set()
"""
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)


@each_kind_of_strategy
def test_epoch_iterator_keeps_no_iterator_of_an_earlier_epoch(strategy):
    data = tf.data.Dataset.from_tensor_slices(np.arange(8.0)).batch(4)
    epochs = EpochIterator(data, distribute_strategy=strategy)
    sources = []
    for _ in range(2):
        for _, _, batches in epochs:
            sources.append(weakref.ref(batches.source))
            next(batches)
    del batches
    assert [source() for source in sources] == [None] * 4


def use_a_generator_again_and_again(strategy):
    """Returns what a model predicts at last, of a generator that takes its time."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def batches():
        while True:
            time.sleep(0.01)
            yield np.ones((4, 1)), np.ones((4, 1))

    generator = batches()
    for _ in range(4):
        model.fit(generator, steps_per_epoch=2, shuffle=False, verbose=0)
        model.evaluate(generator, steps=2, verbose=0)
        predictions = model.predict(generator, steps=2, verbose=0)
    return predictions


@each_kind_of_strategy
def test_a_generator_is_not_called_while_it_runs(strategy):
    assert len(use_a_generator_again_and_again(strategy)) == 8


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_a_generator_is_not_called_while_it_runs_for_workers(workers):
    ((*predictions,),) = strategies.run_on_workers(use_a_generator_again_and_again, workers)

    assert len(predictions) == 8


def use_a_generator_of_a_slow_worker(strategy):
    """Returns the histories of `fit` with an endless generator, which one worker reads slowly."""
    is_slow = kerasdist.Cluster.from_env().worker_index == 1
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def batches(sizes):
        number = 0
        while True:
            for size in sizes:
                time.sleep(0.05 * is_slow)
                number += 1
                yield np.full((size, 1), number / 100), np.ones((size, 1))

    train, validation = batches([8]), batches([4, 4, 3])
    histories = []
    for _ in range(3):
        history = model.fit(
            train,
            steps_per_epoch=2,
            epochs=2,
            validation_data=validation,
            validation_steps=2,
            verbose=0,
        )
        time.sleep(0.2)  # Whoever reads ahead does so now.
        histories.append(history.history)
    return histories


@pytest.mark.processes
def test_workers_take_the_same_of_a_generator_however_fast_they_are():
    first, second = strategies.run_on_workers(use_a_generator_of_a_slow_worker, "2 workers")

    assert first == second


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda numbers: numbers.map(lambda i: i + 1).shuffle(3), False),
        (lambda numbers: tf.data.Dataset.zip(numbers, numbers), False),
        (lambda numbers: numbers.map(negative).batch(2), True),
        (
            lambda numbers: tf.data.Dataset.from_generator(range, args=[3], output_types="int32"),
            True,
        ),
        (lambda numbers: object(), False),
    ],
    ids=["map", "zip", "numpy_function", "from_generator", "no dataset"],
)
def test_who_makes_the_data(make, expected):
    assert dataset_adapter.calls_python(make(tf.data.Dataset.range(3))) == expected


def negative(i):
    return tf.numpy_function(np.negative, [i], tf.int64)


PROGRAM = """
import keras, numpy as np, tensorflow as tf, kerasdist
with kerasdist.make_strategy().scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((np.ones((4, 1)), np.ones((4, 1)))).repeat()
model.fit(data, steps_per_epoch=500, verbose=0)
"""


ENDS_WITH_PYTHON = """
from kerasdist.training.epochs.data_source import DataSource
source = DataSource(iter([]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("program", [PROGRAM, *exhaustive(ENDS_WITH_PYTHON)])
def test_process_ends_well(program):
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Exception ignored" not in result.stderr
