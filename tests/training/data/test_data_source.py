"""The end of an iterator must not keep anybody waiting."""

import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data.data_source import DataSource
from kerasdist.training.data.epoch_iterator import EpochIterator
from tests.strategies import each_strategy


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


@each_strategy
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


PROGRAM = """
import keras, numpy as np, tensorflow as tf, kerasdist
with kerasdist.make_strategy().scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((np.ones((4, 1)), np.ones((4, 1)))).repeat()
model.fit(data, steps_per_epoch=500, verbose=0)
"""


ENDS_WITH_PYTHON = """
from kerasdist.training.data.data_source import DataSource
source = DataSource(iter([]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("program", [PROGRAM, ENDS_WITH_PYTHON])
def test_process_ends_well(program):
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "Exception ignored" not in result.stderr
