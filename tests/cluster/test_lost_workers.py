"""Jobs that lose workers at moments drawn at random, and get them back: nothing of it is seen.

One of four workers is killed, then two of three; the one that is left goes on until there are more
again. Weights and history are those of one device that nobody has interrupted.

make test-kills KILLS=20
"""

import dataclasses
import functools
import json
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kerasdist.support.exit_codes import PEER_FAILED
from tests.cluster import outcomes
from tests.cluster.outcomes import of
from tests.test_preflight import free_addresses

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

NUM_SEEDS = int(os.environ.get("KILLS", "2"))
# Of an attempt: by then about two checkpoints were written since it began.
MOST_STEPS = 14
MOST_SECS = 0.5
KILLED, TOLD = 128 + 9, 128 + 15

PROGRAM = """
import contextlib, json, os, signal, threading, time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

folder, losses = Path({folder!r}), {losses!r}
cluster = kerasdist.Cluster.from_env()
size, rank = str(cluster.num_workers), str(cluster.worker_index)
count = os.environ.get("KERASDIST_RESTART_COUNT", "0")
(folder / f"start {{count}} of {{size}}").touch()
key = size
if {is_elastic} and size in "34":  # On a slow machine they may come late, or be back early.
    key = "3" if list(folder.glob("4-?")) else size.replace("3", "too few")
is_next = key in losses and not list(folder.glob(f"{{key}}-?"))
# All are to be there before it is over.
waits = {is_elastic} and size != "4" and not is_next


class Step(keras.callbacks.Callback):
    num_steps = -1  # Before `fit`.

    def on_train_begin(self, logs=None):
        self.num_steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.num_steps += 1
        time.sleep(0.6 if waits else 0.05)


def end(num_steps, secs, name):
    while step.num_steps < num_steps:
        time.sleep(0.01)
    time.sleep(secs)
    # All at once, itself at last: one that is lost later has ended by itself.
    pids = {{each: folder / f"pid of {{key}}-{{each}}" for each in losses[key]}}
    victims = {{int(path.read_text()): each for each, path in pids.items()}}
    for victim in sorted(victims, key=lambda each: each == me):
        with contextlib.suppress(ProcessLookupError):
            (folder / f"{{key}}-{{victims[victim]}}").touch()
            os.kill(victim, getattr(signal, name))


step = Step()
me = os.getppid() if {with_machine} else os.getpid()  # An agent, without which its task ends.
if is_next and rank in losses[key]:
    (folder / f"pid of {{key}}-{{rank}}").write_text(str(me))
    threading.Thread(target=end, args=losses[key][rank], daemon=True).start()

keras.utils.set_random_seed(7)
strategy = kerasdist.make_strategy(start_timeout_secs=60)
rng = np.random.default_rng(0)
x = rng.normal(size=(133, 6)).astype("float32")
y = x[:, :1] * x[:, 1:2]
train, validation = (x[:101], y[:101]), (x[101:], y[101:])
rate = 0.05
callbacks = [
    kerasdist.callbacks.Checkpoint(folder / "run", **{when!r}),
    step,
    kerasdist.callbacks.GradientAccumulation(2),
    average := kerasdist.callbacks.MovingAverage(0.9, validate=True),
    stop := keras.callbacks.EarlyStopping(
        "val_loss", min_delta=0.05, patience=6, restore_best_weights=True
    ),
]
if {is_dataset}:
    rate = keras.optimizers.schedules.CosineDecay(rate, 60)
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(101, seed=3).batch(16).prefetch(2)
    given = dict(x=data, validation_data=tf.data.Dataset.from_tensor_slices(validation).batch(9))
    given["shuffle"] = False  # `fit` would warn.
else:
    given = dict(x=train[0], y=train[1], batch_size=16, validation_data=validation)
    callbacks.append(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95))
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, "mse", metrics=["mae"])
history = model.fit(**given, epochs=14, verbose=0, callbacks=callbacks)
weights = model.get_weights()
with average.applied(model):
    averages = model.get_weights()
if kerasdist.is_chief():
    result = dict(
        weights=[weight.tolist() for weight in [*weights, *averages]],
        history=history.history,
        updates=int(model.optimizer.iterations.numpy()),
        stopped_epoch=stop.stopped_epoch,
        lost=sorted(path.name for path in folder.glob("?-?")),
        sizes=[each.name.split()[-1] for each in sorted(folder.glob("start *"))],
    )
    print("result", json.dumps(result), flush=True)
"""
KINDS = (
    {"is_dataset": False, "when": {"every_steps": 3}},
    {"is_dataset": True, "when": {"every_secs": 0.3}},
    {"is_dataset": False, "when": {"every_secs": 0.2}},
    {"is_dataset": True, "when": {"every_steps": 2}},
)

# The chief writes for seconds, and meanwhile the last of three workers is killed, of which the
# others hear at once.
WRITING = """
import os, signal, sys, threading, time

import keras
import numpy as np

import kerasdist
from kerasdist.checkpoints import Folder

folder, in_thread = {folder!r}, {in_thread}
is_last = kerasdist.Cluster.from_env().worker_index == 2


def write_slowly(self, step, *args):
    open(os.path.join(folder, f"began-{{step}}"), "w").close()
    time.sleep(3)
    write(self, step, *args)


class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)
        if is_last and any(each.startswith("began") for each in os.listdir(folder)):
            os.kill(os.getpid(), signal.SIGKILL)


def train():
    model.fit(np.ones((640, 2)), np.ones(640), batch_size=4, verbose=0, callbacks=callbacks)


write, Folder.write = Folder.write, write_slowly
with kerasdist.make_strategy(start_timeout_secs=60).scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
callbacks = [kerasdist.callbacks.Checkpoint(os.path.join(folder, "run"), every_secs=0.5), End()]
if in_thread:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
"""

# Worker 1 halts, and tells worker 0 what a launcher would tell it; TensorFlow notices nothing.
TOLD_BY_LAUNCHER = """
import os, pathlib, time

import keras
import numpy as np

import kerasdist
from kerasdist.support import launch_note


class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and not kerasdist.is_chief():
            note = pathlib.Path(os.environ["KERASDIST_NOTE"]).with_name("worker-0.note")
            launch_note.tell_loss(note, "worker 1 is on fire.")
            time.sleep(20)
            os._exit(0)


with kerasdist.make_strategy(start_timeout_secs=60).scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((640, 2)), np.ones(640), batch_size=4, verbose=0, callbacks=[Tell()])
"""


def losses_of(draw, *, may_be_first=True):
    """Returns who ends at which number of workers, and when: one of 4, 2 of 3, and the last one."""
    first = 0 if may_be_first else 1

    def ends(workers, name):
        num_steps = draw.randint(0, MOST_STEPS)
        return {str(each): (num_steps, draw.uniform(0, MOST_SECS), name) for each in workers}

    return {
        "4": ends(draw.sample(range(first, 4), 1), "SIGKILL"),
        "3": ends(draw.sample(range(first, 3), 2), "SIGKILL"),
        "1": ends([0], "SIGTERM"),
    }


def by_hand(seed):
    """Starts the program again with another number of workers, as a person would."""
    with tempfile.TemporaryDirectory() as folder:
        losses = losses_of(random.Random(seed))
        program = program_of(folder, seed, losses, is_elastic=False)
        ended = [outcomes.launched(program, f"--workers={each}") for each in (4, 3, 1, 3)]
    return outcomes.Outcome(
        codes=[code for each in ended for code in each.codes],
        outputs=[output for each in ended for output in each.outputs],
        ended_at=ended[-1].ended_at,
    )


def elastic(seed):
    """Lets the launcher go on with those that are left, until all are back."""
    with tempfile.TemporaryDirectory() as folder:
        losses = losses_of(random.Random(seed))
        del losses["1"]
        program = program_of(folder, seed, losses)
        return outcomes.launched(program, "--workers=1:4", "--resize-secs=15")


def on_machines(seed):
    """Starts an agent for each of four workers, and three more when three were killed."""
    (address,) = free_addresses(1)
    options = ["--workers=1:4", "--resize-secs=15", f"--rendezvous={address}"]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(7) as pool:
        # The loss of the first would end the job: the others meet there.
        losses = losses_of(random.Random(seed), may_be_first=False)
        del losses["1"]
        program = program_of(folder, seed, losses, with_machine=True)
        agents = [pool.submit(outcomes.launched, program, *options) for _ in range(4)]
        while sum(each.done() for each in agents) < 3:
            time.sleep(0.1)
        agents += [pool.submit(outcomes.launched, program, *options) for _ in range(3)]
        ended = sorted([each.result() for each in agents], key=lambda each: each.codes)
    leaders = [each for each in ended if "result {" in each.outputs[0]]
    return outcomes.Outcome(
        codes=[code for each in ended for code in each.codes],
        outputs=[output for each in [*ended, *leaders] for output in each.outputs],
        ended_at=ended[-1].ended_at,
    )


def program_of(folder, seed, losses, *, is_elastic=True, with_machine=False):
    told = {"folder": folder, "losses": losses, **KINDS[seed % len(KINDS)]}
    return PROGRAM.format(**told, is_elastic=is_elastic, with_machine=with_machine)


@functools.cache
def undisturbed(seed):
    """Returns what one device computes that nobody interrupts."""
    with tempfile.TemporaryDirectory() as folder:
        program = program_of(folder, seed, {}, is_elastic=False)
        return result_of(outcomes.launched(program, "--workers=1"))


def result_of(outcome):
    assert outcome.codes[-1] == 0, "\n".join(each[-3000:] for each in outcome.outputs)
    lines = [line for line in outcome.outputs[-1].splitlines() if "result {" in line]
    return json.loads(lines[-1].split("result ", 1)[1])


def runs(run, *, quick_seed=None):
    """Gives a test the outcome of each seed; all but one take long."""
    params = [
        pytest.param(
            functools.partial(run, seed),
            marks=[pytest.mark.exhaustive] if seed != quick_seed else [],
            id=f"seed {seed}",
        )
        for seed in range(NUM_SEEDS)
    ]
    return pytest.mark.parametrize("outcome", params, indirect=True)


@pytest.mark.timeout(0 if "KILLS" in os.environ else 600)
@runs(by_hand)
def test_workers_that_a_person_starts_again_leave_no_trace(outcome, request):
    found = result_of(outcome)
    assert_undisturbed(found, request)
    assert outcome.codes == [KILLED, KILLED, TOLD, 0]
    assert [each[0] for each in found["lost"]] == ["1", "3", "3", "4"]


@pytest.mark.timeout(0 if "KILLS" in os.environ else 600)
@runs(elastic, quick_seed=0)
def test_workers_that_a_launcher_goes_on_without_leave_no_trace(outcome, request):
    found = result_of(outcome)
    assert_undisturbed(found, request)
    assert found["sizes"][:2] == ["4", "3"] and found["sizes"][-1] == "4"
    assert [each[0] for each in found["lost"]] == ["3", "3", "4"]


@pytest.mark.timeout(0 if "KILLS" in os.environ else 600)
@runs(on_machines, quick_seed=1)
def test_machines_that_are_lost_and_replaced_leave_no_trace(outcome, request):
    found = result_of(outcome)
    assert_undisturbed(found, request)
    assert outcome.codes == [-9, -9, -9, 0, 0, 0, 0]
    assert found["sizes"].count("4") > 1 and found["sizes"][-1] == "4"
    assert [each[0] for each in found["lost"]] == ["3", "3", "4"]


def assert_undisturbed(found, request):
    """Compares a result with that of one device that nobody interrupts."""
    (seed,) = request.node.callspec.params["outcome"].args
    expected = undisturbed(seed % 2)  # The others differ in when they save.
    assert 0 < expected["stopped_epoch"] < 13  # Otherwise nobody would have had to stop.
    assert found["stopped_epoch"] == expected["stopped_epoch"]
    assert found["updates"] == expected["updates"]
    assert found["history"].keys() == expected["history"].keys()
    for name, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


def while_writing(*, in_thread):
    """Kills a worker while the chief writes; the last output names what is in the folder."""
    with tempfile.TemporaryDirectory() as folder:
        ended = outcomes.alone(WRITING.format(folder=folder, in_thread=in_thread), num_workers=3)
        began = [name for name in os.listdir(folder) if name.startswith("began")]
        names = [*began, *os.listdir(os.path.join(folder, "run"))]
    return dataclasses.replace(ended, outputs=[*ended.outputs, " ".join(names)])


def assert_written(outcome):
    assert outcome.codes == [PEER_FAILED, PEER_FAILED, KILLED]
    began, *written = outcome.outputs[-1].split()
    assert written == [f"step-{int(began.removeprefix('began-')):08d}"], outcome.outputs


@of(while_writing, in_thread=False)
def test_what_the_chief_writes_is_written_before_it_ends(outcome):
    assert_written(outcome)


@of(while_writing, in_thread=True)
def test_what_the_chief_writes_is_written_before_a_thread_ends_it(outcome):
    assert_written(outcome)


@of(outcomes.alone, TOLD_BY_LAUNCHER)
def test_a_worker_ends_as_soon_as_its_launcher_tells_it_of_a_loss(outcome):
    assert outcome.codes == [PEER_FAILED, 0]
    assert "ends because worker 1 is on fire." in outcome.outputs[0]
