"""The graphs that workers run; here on one in this process."""

import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers.epoch_iterator import Call
from kerasdist.training.parameter_servers.ledger import CLOSED
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction

X = np.arange(48, dtype="float32").reshape(24, 2) / 10


@pytest.fixture
def run(worker_in_process):
    """Runs calls with the batches, of an example each, that the worker has not read yet."""
    with worker_in_process.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
    function = WorkerStepFunction(model, model.test_step, returns_metrics=True, weighs_loss=False)
    dataset = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(1)
    iterator = iter(dataset.enumerate())

    def run(position, num_steps, *, has_lost=False, is_counted=True):
        data = types.SimpleNamespace(is_strict=True, is_counted=is_counted)
        source = types.SimpleNamespace(data=data, generation=1)
        calls: Any = types.SimpleNamespace(source=source)
        call = Call(calls=calls, position=position, num_steps=num_steps)
        runner = function._runner
        steps, numbers = runner._steps.of_call(call, has_lost=has_lost)
        result, _ = runner.schedule_once(steps, (iterator, tf.constant(numbers, tf.int64)))
        return result.numpy().tolist()

    return run


def test_a_worker_skips_to_the_position_of_its_call(run):
    assert run(0, 1) == [0, 1]
    assert run(3, 1) == [3, 1]
    assert run(4, 9) == [4, 9]  # With a loop that makes some steps at once, and a remainder.
    assert run(13, 2) == [13, 2]


def test_a_worker_that_is_past_the_position_runs_nothing(run):
    run(5, 2)

    assert run(3, 2) == [-1, 0]
    assert run(3, 1, has_lost=True) == [-1, 0]
    assert run(7, 1, has_lost=True) == [7, 1]


def test_a_step_that_comes_late_fails_as_one_that_was_given_up_and_reads_nothing(run):
    run(5, 1)

    with pytest.raises(tf.errors.InvalidArgumentError, match=CLOSED):
        run(4, 1)
    assert run(6, 1) == [6, 1]


def test_a_call_ends_with_its_data(run):
    assert run(20, 3, is_counted=False) == [20, 3]
    assert run(23, 3, is_counted=False) == [23, 1]
    assert run(26, 3, is_counted=False) == [26, 0]
