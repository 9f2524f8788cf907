"""Where the time of asynchronous workers goes, as the chief reads it."""

import tempfile
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from kerasdist import show
from kerasdist.callbacks import Summaries
from kerasdist.strategies.make_strategy import make_strategy
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from tests import fork_server

pytestmark = pytest.mark.processes

NUM_STEPS, BATCH, LENGTH = 60, 4, 3


@pytest.fixture(scope="module")
def outcome():
    chief, *_ = fork_server.run_cluster(train_beside_a_slow_input, num_workers=2, num_ps=2)
    assert chief.exit_code == 0, chief.output[-4000:]
    return chief.value


@pytest.fixture
def found(outcome):
    return outcome[0]


def train_beside_a_slow_input():
    """Returns the numbers of a run in which the second worker waits for its data.

    And those that are asked for twice after it.
    """
    with make_strategy().scope():
        model = keras.Sequential([keras.layers.Embedding(1000, 8), keras.layers.Flatten()])
        model.add(keras.layers.Dense(1))
        model.compile("sgd", "mse")

    def data(context):
        size = 1 + 2200 * context.input_pipeline_id

        def slow(x, y):
            work = tf.random.uniform([size, size])
            return x + tf.cast(0.0 * tf.reduce_sum(work @ work), tf.int64), y

        x, y = tf.zeros([BATCH, LENGTH], tf.int64), tf.ones([BATCH, 1])
        return tf.data.Dataset.from_tensors((x, y)).repeat().map(slow)

    with tempfile.TemporaryDirectory() as folder:
        model.fit(
            data,
            epochs=2,
            steps_per_epoch=NUM_STEPS // 2,
            verbose=0,
            callbacks=[Summaries(folder, every_steps=10)],
        )
        times = model.train_function.times
        return show.read(Path(folder)), [times.take_numbers() for _ in range(2)]


def mean(found, tag) -> float:
    values = found[f"train/{tag}"].values()
    return sum(values) / len(values)


def test_the_steps_of_each_worker(found):
    fast, slow = (mean(found, f"steps_per_second/worker {worker}") for worker in range(2))

    assert fast > 2 * slow > 0
    assert mean(found, "examples_per_second/worker 0") == pytest.approx(BATCH * fast)
    rate = mean(found, "examples_per_second")
    assert BATCH * (fast + slow) == pytest.approx(rate, rel=0.3)


def test_who_waits_for_what(found):
    # Of the time in steps: what is between them depends on how fast the chief and the machine are.
    fast, slow = (
        mean(found, f"input_wait_share/worker {worker}")
        / (1 - mean(found, f"between_steps_share/worker {worker}"))
        for worker in range(2)
    )

    assert slow > 0.5 > fast


def test_updates_of_others_while_a_step_computes(found):
    assert found["train/staleness/max"].keys() == found["train/staleness/mean"].keys()
    assert 0 <= mean(found, "staleness/mean") <= mean(found, "staleness/max")


def test_bytes_to_each_parameter_server(found):
    num_bytes = [mean(found, f"gradient_bytes/ps {ps}") for ps in range(2)]

    # Of the embeddings the rows of a batch and their numbers, not the table.
    rows = BATCH * LENGTH * (8 * 4 + 4)
    assert sum(num_bytes) == pytest.approx(rows + 4 * (LENGTH * 8 + 1))


def test_nothing_is_known_where_nobody_measures():
    times = WorkerTimes(None, is_on=False)

    assert len(times.read()) == 0
    assert times.take_numbers() == {}


def test_no_bytes_are_told_of_where_no_step_has_ended(outcome):
    _, asked = outcome

    assert asked[-1] == {"staleness/max": 0.0}


def test_the_slow_worker_is_named(found):
    said = show.sentence_on("run", found)

    assert "Bottleneck: worker 1, which makes " in said
    assert "% is input (" in said
