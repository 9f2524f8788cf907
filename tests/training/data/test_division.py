"""What one of several workers has of the data, and what the chief says of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.support import memory
from kerasdist.training.context import running_call
from kerasdist.training.data.division import Division, divide
from tests import strategies

ALL = "every worker reads all of it and takes its part of each batch"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())


@pytest.fixture
def files(tmp_path):
    for name, lines in {"a": "1\n2\n3\n", "b": "4\n5\n"}.items():
        (tmp_path / name).write_text(lines)
    return [str(tmp_path / name) for name in ("a", "b")]


def worker(index, num_workers=2):
    addresses = [f"host:{1 + each}" for each in range(num_workers)]
    return strategies.spanning(Cluster(jobs={"worker": addresses}, task=Task("worker", index)))


def lines(files):
    read = tf.data.Dataset.from_tensor_slices(files).interleave(tf.data.TextLineDataset)
    return read.map(lambda line: tf.strings.to_number(line))


def numbers():
    return tf.data.Dataset.range(8)


def halve(x):
    return x / 2


SAID = {
    "2 files, each read by one of 2 workers": lambda files: lines(files).batch(2),
    # One file is left, and of what is read each prepares its part.
    "every worker reads all of it and prepares its part of each batch": lambda files: lines(
        files[:1]
    ).batch(2),
    f"{ALL}": lambda files: numbers().batch(2),
    f"{ALL} (`shuffle` after `map`)": lambda files: numbers().map(halve).shuffle(3).batch(2),
    "every worker reads all of it and prepares its part of each batch (an earlier `map` prepares "
    "all: `shuffle` after `map`)": lambda files: (
        numbers().map(halve).shuffle(3).map(halve).batch(2)
    ),
    f"{ALL} (`take` needs all files; `shuffle` after `map`)": lambda files: (
        lines(files).take(4).shuffle(3).batch(2)
    ),
}


@pytest.mark.parametrize("said", SAID)
def test_the_chief_alone_says_how_data_is_read_and_why(files, capsys, said):
    divide(SAID[said](files), worker(1))
    assert capsys.readouterr().err == ""

    divide(SAID[said](files), worker(0))
    assert capsys.readouterr().err == f"Data: {said}.\n"


def test_predict_and_a_worker_alone_read_everything(files, capsys):
    assert divide(lines(files).batch(2), worker(0, num_workers=1)) == Division()
    with running_call.entered("predict", keras.Model()):
        assert divide(lines(files).batch(2), worker(0)) == Division()
    assert divide(np.ones(3), worker(0)) == Division()
    assert capsys.readouterr().err == ""


def test_what_a_function_has_made_is_read_by_its_worker_alone(capsys):
    divided = divide(numbers().batch(2), worker(0), is_function=True)

    assert divided.of_files is not None
    assert divided.of_batches is None
    assert capsys.readouterr().err == ""


class OwnTestFunction(keras.Model):
    def make_test_function(self, force=False):
        self.test_function = lambda iterator: {"loss": 0.0}


@pytest.mark.parametrize("model", [OwnTestFunction, keras.Model])
def test_a_function_of_the_program_has_whole_batches(model, capsys):
    with running_call.entered("evaluate", model()):
        divided = divide(numbers().map(halve).batch(2), worker(0))

    is_own = model is OwnTestFunction
    assert (divided.of_batches is None) == is_own
    reason = "(the model has a `make_test_function` of its own)"
    assert (reason in capsys.readouterr().err) == is_own
