"""What stock `fit` does over parameter servers when a task is killed or halted: real processes."""

import re

import pytest

from tests.cluster import outcomes
from tests.cluster.outcomes import STUCK_STEP, of

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

# After 20 steps the chief calls `act()`, and trains until 600 steps, or until `is_over()`.
PROGRAM = """
import os, pathlib, signal, sys, tempfile, time

import keras
import numpy as np
import tensorflow as tf

import kerasdist

num_epochs = 2
limits = {"start_timeout_secs": 100}


def mark(task):
    return pathlib.Path(tempfile.gettempdir()) / f"{os.environ['KERASDIST_RUN_ID']} {task}"


def kill(task, number=signal.SIGKILL):
    os.kill(int(mark(task).read_text()), number)


def is_over():
    return False


class Act(keras.callbacks.Callback):
    num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        time.sleep(0.02)
        if self.num_steps == 20:
            print(f"acts at {time.time()}", flush=True)
            act()
        if self.num_steps > 20 and is_over():
            self.model.stop_training = True


class Model(keras.Sequential):
    def train_step(self, data):
        tf.print("works", output_stream=sys.stderr)
        return super().train_step(data)


def data():
    x, y = np.ones((4 * 300, 2), "float32"), np.ones((4 * 300, 1), "float32")
    return {"x": x, "y": y, "batch_size": 4}


def run():
    mark(kerasdist.Cluster.from_env().task).write_text(str(os.getpid()))
    strategy = kerasdist.make_strategy(
        steps_per_call=1, heartbeat_timeout_secs=5, **limits
    )
    with strategy.scope():
        model = Model([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    acts = Act()
    model.fit(**data(), epochs=num_epochs, verbose=0, callbacks=[acts])
    print(f"steps: {acts.num_steps}", int(model.optimizer.iterations.numpy()), flush=True)
"""
LOST = (
    r"worker 1 \(127\.0\.0\.1:\d+\) is lost: its steps go to the others, until it is there again\."
)
SILENT = r"worker 1 \(127\.0\.0\.1:\d+\) gives no sign of life: its steps go to the others\."


def alone(source: str, *, num_workers: int = 2):
    """Runs a chief, workers and a ps that nobody stops."""
    return outcomes.alone(PROGRAM + source + "\nrun()\n", num_workers=num_workers, num_ps=1)


def launched(source: str, *options: str):
    """Runs them by `python -m kerasdist launch`."""
    return outcomes.launched(PROGRAM + source + "\nrun()\n", "--ps=1", *options)


def steps_of(output: str) -> tuple[int, int]:
    """Returns the steps that the callbacks saw, and those that the optimizer counted."""
    [(seen, counted)] = re.findall(r"steps: (\d+) (\d+)", output)
    return int(seen), int(counted)


def assert_all_steps_ran(chief: str):
    assert steps_of(chief) == (600, 600)


@of(alone, "def act(): kill('worker 1')")
def test_training_goes_on_without_a_killed_worker(outcome):
    chief = outcome.outputs[0]

    assert outcome.codes == [0, 0, 137, 0]
    place = "ParameterServerStrategy, 2 replicas as {} of 2 workers and 1 ps task, from TF_CONFIG "
    for task, output in zip(
        ("chief 0", "worker 0", "worker 1", "ps 0"), outcome.outputs, strict=True
    ):
        assert place.format(task) in output
    [line] = [each for each in chief.splitlines() if "worker 1" in each or "task:1" in each]
    assert re.fullmatch(LOST, line)
    assert_all_steps_ran(chief)
    assert outcome.secs < 60


@of(alone, "def act(): kill('worker 1', signal.SIGSTOP)")
def test_halted_worker_is_found_and_killed(outcome):
    chief = outcome.outputs[0]

    assert outcome.codes == [0, 0, 137, 0]
    assert re.search(SILENT, chief)
    assert_all_steps_ran(chief)
    assert outcome.secs < 60


@of(
    alone,
    """
class Halt(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        if batch == 299:  # Only the results are left to be read, by functions that are new.
            print(f"acts at {time.time()}", flush=True)
            kill("worker 1", signal.SIGSTOP)


class Model(Model):
    def fit(self, **given):
        self.evaluate(**data(), verbose=0, callbacks=[Halt()])
""",
)
def test_worker_that_is_halted_when_only_results_are_left_is_found_and_killed(outcome):
    assert outcome.codes == [0, 0, 137, 0]
    assert re.search(SILENT, outcome.outputs[0])
    assert outcome.secs < 30


@pytest.mark.exhaustive
@of(
    alone,
    """
from kerasdist.lifetime import worker_watch

worker_watch.is_here = lambda address: False  # As on another machine, where nobody can kill it.

def act():
    kill("worker 1", signal.SIGSTOP)
""",
)
def test_worker_that_is_halted_elsewhere_is_left_alone(outcome):
    chief = outcome.outputs[0]

    assert outcome.codes[0] == outcome.codes[1] == outcome.codes[3] == 0
    assert re.search(SILENT, chief)
    assert_all_steps_ran(chief)
    assert outcome.secs < 120


UNTIL_IT_IS_BACK = """
num_epochs = 40

def act():
    kill("worker 1")

def is_over():
    [log] = pathlib.Path().glob("kerasdist_logs/*/worker-1.log")
    return "works" in log.read_text().partition("joins the job")[2]
"""


def assert_it_is_back(outcome):
    [output] = outcome.outputs

    assert outcome.codes == [0]
    assert re.search(LOST, output)
    assert re.search(r"\nworker 1 was ended by a signal: Killed .* starts again, 1 of 1\.", output)
    assert re.search(r"worker 1 \(127\.0\.0\.1:\d+\) is back\.", output)
    return steps_of(output)


@of(launched, UNTIL_IT_IS_BACK, "--max-restarts=1")
def test_restarted_worker_joins_again_and_trains(outcome):
    seen, counted = assert_it_is_back(outcome)

    assert 20 < seen < 40 * 300
    assert seen <= counted < seen + 40  # Some were on their way.


@of(launched, UNTIL_IT_IS_BACK, "--max-restarts=1", "--backup=0")
def test_restarted_synchronous_worker_joins_again_and_trains(outcome):
    seen, counted = assert_it_is_back(outcome)

    assert 20 < seen == counted < 40 * 150


@of(
    alone,
    """
os.environ["KERASDIST_NUM_BACKUP_WORKERS"] = "0"
limits["start_timeout_secs"] = 30

def act():
    kill("worker 0")
    kill("worker 1")
""",
)
def test_the_loss_of_all_synchronous_workers_ends_the_job_by_the_limit(outcome):
    chief = outcome.outputs[0]

    assert outcome.codes[0] == 138
    assert re.search(r"Waiting for a worker: worker 0 .*, worker 1 .* s of 30 s\.", chief)
    assert "no worker is left, for 30 s" in chief


WITH_A_LIMIT = """
import functools

kerasdist.make_strategy = functools.partial(kerasdist.make_strategy, step_timeout_secs=14)

def act(): pass
"""


def assert_ends_because_the_worker_is_late(outcome, doing):
    chief, worker, ps = outcome.outputs
    late = rf"worker 0 \(127\.0\.0\.1:\d+\) is late: {doing}\."

    assert outcome.codes == [138] * 3
    assert outcome.secs < 60
    assert re.search(rf"No step has ended for 1\d s; the longest .* {late} After 14 s", chief)
    for output in (chief, worker, ps):
        assert re.search(rf"ends because no step has ended for 14 s\. {late} Fix what", output)


@pytest.mark.exhaustive
@of(alone, f"{WITH_A_LIMIT}\n{STUCK_STEP}\nModel = Stuck\n", num_workers=1)
def test_worker_that_is_stuck_is_named_and_ends_the_job_by_the_limit(outcome):
    assert_ends_because_the_worker_is_late(
        outcome, "computing its step, or exchanging it with the parameter servers"
    )


@of(
    alone,
    f"""{WITH_A_LIMIT}
def data():
    def wait(index):
        [index] = tf.while_loop(lambda index: index > 30, lambda index: [index], [index])
        return tf.ones([4, 2]) * tf.cast(index, tf.float32), tf.ones([4, 1])

    return {{"x": tf.data.Dataset.range(300).map(wait), "shuffle": False}}
""",
    num_workers=1,
)
def test_worker_whose_data_is_stuck_is_named_with_it(outcome):
    assert_ends_because_the_worker_is_late(outcome, "waiting for its data")


def assert_ends_because_of_the_ps(chief: str):
    assert re.search(r"chief 0 \(127\.0\.0\.1:\d+\) ends because ps 0 \(127\.0\.0\.1:\d+\) ", chief)
    assert "steps:" not in chief


@of(alone, "def act(): kill('ps 0')", num_workers=1)
def test_killed_parameter_server_ends_the_job(outcome):
    assert outcome.codes == [138, 138, 137]
    assert outcome.secs < 30
    assert_ends_because_of_the_ps(outcome.outputs[0])


@pytest.mark.exhaustive
@of(launched, "def act(): kill('ps 0', signal.SIGSTOP)")
def test_halted_parameter_server_ends_the_job(outcome):
    assert outcome.codes == [137]  # The ps was the first to fail: the launcher killed it.
    assert outcome.secs < 60
    assert_ends_because_of_the_ps(outcome.outputs[0])
