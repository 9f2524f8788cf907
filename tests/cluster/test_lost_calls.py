"""Workers of parameter servers that are lost, or calls: every step is applied and counted once.

The gradient of every weight is 1 and the learning rate too, so that each number of each weight says
how often it was updated.
"""

import functools
import json
import re

import pytest

from tests.cluster import outcomes

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

NUM_STEPS, BATCH_SIZE, NUM_WORKERS = 600, 4, 3

# Of three workers two are lost, after a quarter and half of the steps.
PROGRAM = """
import json, os, pathlib, random, signal, tempfile, threading, time

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist.lifetime import worker_watch
from kerasdist.private import coordinator_adapter

NUM_STEPS, BATCH_SIZE = {num_steps}, {batch_size}
draw = random.Random({seed})


def mark(task):
    return pathlib.Path(tempfile.gettempdir()) / f"{{os.environ['KERASDIST_RUN_ID']}} {{task}}"


class Lose(keras.callbacks.Callback):
    left = [("worker 1", {number}), ("worker 2", {number})]

    def on_train_batch_end(self, batch, logs=None):
        if self.left and batch > NUM_STEPS * (3 - len(self.left)) / 4:
            task, number = self.left.pop(0)
            # Not always between two calls.
            threading.Timer(draw.uniform(0, 0.2), lose, [task, number]).start()


def put_behind():
    # As TensorFlow does with what a worker had not begun when it was lost.
    calls = strategy.deployment.remote.coordinator._cluster.closure_queue
    with calls._queue_lock:
        calls._queue.put(calls._queue.get(block=False), block=False)


def lose(task, number):
    if number == "late":
        put_behind()
        return
    if isinstance(number, str):
        errors.append(number)
        return
    os.kill(int(mark(task).read_text()), number)
    if number == signal.SIGSTOP:
        halted.append(task)


def wake(address):
    if halted:
        threading.Timer(1.0, lose, [halted.pop(), signal.SIGCONT]).start()


# As on other machines, where nobody is killed. What a worker does that comes back must not count.
halted, worker_watch._kill_if_halted = [], wake


errors, copy = [], coordinator_adapter._copy


def copy_or_lose(output):
    copied = copy(output)
    if errors:
        raise getattr(tf.errors, errors.pop(0))(None, None, {error!r})
    return copied


coordinator_adapter._copy = copy_or_lose


class Ones(keras.Model):
    def build(self, shape):
        self.sum_of_examples = keras.metrics.Sum()
        for index, size in enumerate([3, 1, 20_000, 7, 30_000]):
            self.add_weight((size,), "zeros", name=f"weight_{{index}}")

    def call(self, x):
        return x

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.sum_of_examples.update_state(y)
        return tf.add_n([tf.reduce_sum(weight.value) for weight in self.weights[:5]])


def batches():
    return tf.data.Dataset.range(NUM_STEPS * BATCH_SIZE).batch(BATCH_SIZE).map(
        lambda i: (tf.reshape(tf.cast(i, tf.float32), [-1, 1]), tf.cast(i, tf.float32))
    )


mark(kerasdist.Cluster.from_env().task).write_text(str(os.getpid()))
strategy = kerasdist.make_strategy(
    steps_per_call={steps_per_call}, heartbeat_timeout_secs=5, start_timeout_secs=100
)
with strategy.scope():
    model = Ones()
    model.compile(keras.optimizers.SGD(1.0))
    model.build((None, 1))
steps = {{}}
data = {data}
if callable(data):
    steps = dict(steps_per_epoch=NUM_STEPS)
model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[Lose()], **steps)
result = dict(
    iterations=int(model.optimizer.iterations.numpy()),
    updates=[sorted(set((-weight.numpy()).tolist())) for weight in model.weights[:5]],
    examples=int(model.train_function.num_examples),
    losses=float(model.metrics[0].count),
    sum_of_examples=float(model.sum_of_examples.total),
    lost=2 - len(Lose.left),
)
print("result", json.dumps(result), flush=True)
"""

ON_WORKERS = "batches()"
# As gRPC says it, and TensorFlow after it; of a worker that lives, and has done its work.
OF_A_WORKER = (
    "Unable to parse request\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:2 while calling RunComponentFunction: "
)
OF_A_FUNCTION = "lambda context: batches().repeat()"
OF_THE_CHIEF = "(batch for batch in batches().as_numpy_iterator())"


def trained(data, steps_per_call, number="signal.SIGKILL", seed=0):
    program = PROGRAM.format(
        data=data,
        steps_per_call=steps_per_call,
        number=number,
        seed=seed,
        num_steps=NUM_STEPS,
        batch_size=BATCH_SIZE,
        error=OF_A_WORKER,
    )
    return outcomes.alone(program, num_workers=NUM_WORKERS, num_ps=2)


def result_of(outcome) -> dict:
    lines = re.findall(r"result (\{.*\})", outcome.outputs[0])
    assert len(lines) == 1, outcome.outputs[0]
    return json.loads(lines[0])


LOSSES = {
    "data on the workers": (ON_WORKERS, 20),
    "data of the chief": (OF_THE_CHIEF, 1, "signal.SIGTERM"),
    "data of a function": (OF_A_FUNCTION, 50),
    "halted for a while": (ON_WORKERS, 20, "signal.SIGSTOP"),
    "damaged requests": (ON_WORKERS, 20, "'InternalError'"),
    "cancelled calls": (ON_WORKERS, 20, "'CancelledError'"),
    "no connection for a while": (ON_WORKERS, 1, "'UnavailableError'"),
    "steps that come late": (ON_WORKERS, 1, "'late'"),
}
EXHAUSTIVE = {
    "data of the chief",
    "data of a function",
    "halted for a while",
    "damaged requests",
    "cancelled calls",
    "steps that come late",
}


@pytest.mark.parametrize(
    ("outcome", "is_endless"),
    [
        pytest.param(
            functools.partial(trained, *arguments),
            arguments[0] == OF_A_FUNCTION,
            id=name,
            marks=[pytest.mark.exhaustive] if name in EXHAUSTIVE else [],
        )
        for name, arguments in LOSSES.items()
    ],
    indirect=["outcome"],
)
def test_every_step_is_applied_and_counted_once(outcome, is_endless):
    found = result_of(outcome)

    assert found["lost"] == 2
    assert found["iterations"] == NUM_STEPS
    assert found["updates"] == [[NUM_STEPS]] * 5
    assert found["examples"] == found["losses"] == NUM_STEPS * BATCH_SIZE
    if not is_endless:
        assert found["sum_of_examples"] == sum(range(NUM_STEPS * BATCH_SIZE))
