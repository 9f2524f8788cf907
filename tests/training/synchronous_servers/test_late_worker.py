"""A worker that is late, of more workers than an update has batches: who is told, and what."""

import contextlib
import io
import logging
import re
import tempfile
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from kerasdist import show
from kerasdist.callbacks import Summaries
from kerasdist.strategies.make_strategy import make_strategy
from tests import event_files, fork_server

pytestmark = pytest.mark.processes

NUM_STEPS, BATCH, SLEEP_SECS = 80, 4, 0.1
LATE = 2


@pytest.fixture(scope="module")
def found():
    chief, *_ = fork_server.run_cluster(
        train_beside_a_late_worker, num_workers=3, num_ps=1, num_backup_workers=1
    )
    assert chief.exit_code == 0, chief.output[-4000:]
    return chief.value


def train_beside_a_late_worker():
    """Returns what is seen of two epochs."""
    with make_strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("kerasdist").addHandler(handler)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        history = model.fit(
            data_of_worker,
            epochs=2,
            steps_per_epoch=NUM_STEPS,
            verbose=2,
            callbacks=[Summaries(folder, every_steps=NUM_STEPS // 4)],
        )
        return {
            "stale": history.history["stale"],
            "updates": int(model.optimizer.iterations),
            "lines": lines,
            "printed": printed.getvalue(),
            "tags": event_files.numbers(Path(folder) / "train"),
            "sentence": show.sentence_on("run", show.read(Path(folder))),
        }


def data_of_worker(context):
    data = tf.data.Dataset.from_tensors((tf.ones([BATCH, 3]), tf.ones([BATCH, 1]))).repeat()
    return data.map(sleeping) if context.input_pipeline_id == LATE else data


def sleeping(x, y):
    """Sleeps without Python, which workers of parameter servers do not run."""
    element = tf.raw_ops.TensorDataset(components=[x], output_shapes=[x.shape])
    late = tf.raw_ops.SleepDataset(
        input_dataset=element,
        sleep_microseconds=tf.constant(int(SLEEP_SECS * 1e6 / 2), tf.int64),
        output_types=[x.dtype],
        output_shapes=[x.shape],
    )
    (x,) = tf.raw_ops.DatasetToSingleElement(
        dataset=late, output_types=[x.dtype], output_shapes=[x.shape]
    )
    return x, y


def test_the_logs_count_what_was_dropped_in_each_epoch(found):
    assert found["updates"] == 2 * NUM_STEPS
    assert len(found["stale"]) == 2
    assert sum(found["stale"]) > 0
    shown = [int(number) for number in re.findall(r"(\d+) stale", found["printed"])]
    assert shown == found["stale"]


def test_the_last_line_says_whose_batches_these_were(found):
    line = found["lines"][-1]
    assert line.startswith("Stale, as their updates did not wait for them: ")
    numbers = re.findall(r"(\d+)(?: batch| batches)? of worker (\d)", line)
    assert sum(int(number) for number, _ in numbers) == sum(found["stale"])
    assert str(LATE) in [worker for _, worker in numbers]


def test_event_files_have_each_workers_share(found):
    tags = found["tags"]
    own = {
        tag: [max(tags[f"{tag}/worker {worker}"].values()) for worker in range(3)]
        for tag in ("dropped_share", "steps_per_second", "staleness", "input_wait_share")
    }
    assert own["dropped_share"][LATE] > 0.3
    assert own["staleness"][LATE] >= 1
    assert own["steps_per_second"][LATE] == min(own["steps_per_second"])
    assert own["input_wait_share"][LATE] == max(own["input_wait_share"])
    assert set(tags) >= {"loss (raw)", "dropped_share", "staleness/mean", "staleness/max"}


def test_show_names_the_late_worker(found):
    assert f"Late: worker {LATE}, which makes" in found["sentence"]
    assert "updates did not wait for it" in found["sentence"]
    assert any(f"Late: worker {LATE}" in line for line in found["lines"])
