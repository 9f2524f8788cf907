"""Tasks that KILL or TERM ends at moments drawn at random: the job ends as if nothing had been.

make test-kills KILLS=20
"""

import functools
import json
import os
import random
import tempfile

import numpy as np
import pytest

from tests.cluster import outcomes

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

# One of each deployment, or as many as are asked for.
NUM_KILLS = int(os.environ.get("KILLS", "4"))
# Options of the launcher, replicas of a worker, and the tasks that can be killed.
DEPLOYMENTS = (
    (("--workers=1",), 1, ["worker 0"]),
    (("--workers=1",), 2, ["worker 0"]),
    (("--workers=2",), 1, ["worker 0", "worker 1"]),
    (("--workers=2", "--ps=2"), 1, ["chief 0", "worker 0", "worker 1", "ps 0", "ps 1"]),
)
# From before the first step to about the last one.
MOST_SECS = 3.5
NUM_UPDATES = 21
STEP_SECS = 0.15
LEAST_SECS = NUM_UPDATES * STEP_SECS

PROGRAM = """
import json, os, signal, threading, time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

folder = Path({folder!r})


def kill():
    # The clock starts for all tasks when the chief is about to train.
    while not (folder / "begins").exists():
        time.sleep(0.01)
    time.sleep({secs})
    (folder / "killed").touch()
    os.kill(os.getpid(), signal.{name})


alone = '{{"task": {{"type": "worker", "index": 0}}}}'
me = json.loads(os.environ.get("TF_CONFIG") or alone)["task"]
if f"{{me['type']}} {{me['index']}}" == {task!r} and not (folder / "killed").exists():
    threading.Thread(target=kill, daemon=True).start()


class Slowly(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.num_updates = int(self.model.optimizer.iterations)

    def on_train_batch_end(self, batch, logs=None):
        # Over parameter servers a checkpoint waits for several steps, of which nobody else hears.
        before, self.num_updates = self.num_updates, int(self.model.optimizer.iterations)
        time.sleep({step_secs} * (self.num_updates - before))


keras.utils.set_random_seed(7)
config = None
if {num_clones} > 1:
    config = kerasdist.DeploymentConfig(num_clones={num_clones}, clone_on_cpu=True)
strategy = kerasdist.make_strategy(config, start_timeout_secs=60)
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
rng = np.random.default_rng(0)
x = rng.normal(size=(101, 6)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(101, seed=3).batch(16)
callbacks = [kerasdist.callbacks.Checkpoint(folder / "run", every_steps=3, keep=2), Slowly()]
if kerasdist.is_chief():
    (folder / "begins").touch()
history = model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
if kerasdist.is_chief():
    result = dict(
        weights=[weight.tolist() for weight in model.get_weights()],
        losses=history.history["loss"],
        updates=int(model.optimizer.iterations.numpy()),
        was_killed=(folder / "killed").exists(),
        left=sorted(path.name for path in (folder / "run").iterdir()),
    )
    print("result", json.dumps(result), flush=True)
"""


def trained(options, num_clones, task="nobody", name="SIGKILL", secs=0.0):
    """Runs a job of which a task gets a signal once, so many seconds after training began."""
    with tempfile.TemporaryDirectory() as folder:
        values = {"folder": folder, "num_clones": num_clones, "task": task, "name": name}
        program = PROGRAM.format(**values, secs=secs, step_secs=STEP_SECS)
        return outcomes.launched(program, "--max-restarts=1", *options)


def kills():
    for seed in range(NUM_KILLS):
        options, num_clones, tasks = DEPLOYMENTS[seed % len(DEPLOYMENTS)]
        draw = random.Random(seed)
        task, secs = draw.choice(tasks), round(draw.uniform(0, MOST_SECS), 2)
        name = ("SIGKILL", "SIGTERM")[seed // len(DEPLOYMENTS) % 2]
        yield pytest.param(
            functools.partial(trained, options, num_clones, task, name, secs),
            id=f"{' '.join(options)} x {num_clones}, {name} for {task} after {secs} s",
        )


@functools.cache
def undisturbed():
    """Returns what one device computes that nobody kills."""
    return _result_of(trained(*DEPLOYMENTS[0][:2]))


def _result_of(outcome):
    assert outcome.codes == [0], outcome.outputs[0][-4000:]
    lines = [line for line in outcome.outputs[0].splitlines() if "result {" in line]
    return json.loads(lines[-1].split("result ", 1)[1])


@pytest.mark.exhaustive  # test_checkpoints.py kills workers in given steps.
@pytest.mark.timeout(0 if "KILLS" in os.environ else 600)
@pytest.mark.parametrize("outcome", list(kills()), indirect=True)
def test_it_ends_as_if_nothing_had_been(outcome, request):
    found, expected = _result_of(outcome), undisturbed()
    *_, secs = request.node.callspec.params["outcome"].args

    # Otherwise nothing would have been tested: the steps alone take longer.
    assert found["was_killed"] or secs > LEAST_SECS
    assert found["updates"] == NUM_UPDATES
    assert len(found["left"]) == 2
    assert found["left"][-1] == f"step-{NUM_UPDATES:08d}"
    assert len(found["losses"]) == len(expected["losses"])
    if "--ps" not in request.node.name:  # There the order of updates is left to chance.
        for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
