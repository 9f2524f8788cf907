"""How long steps wait, measured inside and outside of a graph."""

import time

import pytest
import tensorflow as tf

from kerasdist.private import runtime
from kerasdist.training.step import step_times
from kerasdist.training.step.step_times import StepTimes

SECS = 0.05


def late(value):
    """Returns a tensor that comes after a while."""

    def wait(value):
        time.sleep(SECS)
        return value

    return tf.numpy_function(wait, [value], tf.float32)


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("column", [step_times.INPUT_SECS, step_times.EXCHANGE_SECS])
def test_seconds_of_a_wait(is_eager, column):
    times = StepTimes(is_on=True)

    def step(value):
        if column == step_times.INPUT_SECS:
            return times.of_input(lambda: late(value))
        return times.of_exchange(lambda tensors: [late(each) for each in tensors], [value])[0]

    run = step if is_eager else tf.function(step)
    for _ in range(2):
        assert float(run(tf.constant(3.0))) == 3.0

    row = times.read()[0]
    assert 2 * SECS <= row[column] < 10 * SECS
    assert row.sum() == row[column]


def test_what_comes_before_and_after_is_no_wait():
    times = StepTimes(is_on=True)

    @tf.function
    def step(value):
        value = times.of_exchange(lambda tensors: tensors, [late(value)])[0]
        return late(value)

    step(tf.constant(3.0))
    assert times.read()[0, step_times.EXCHANGE_SECS] < SECS


def test_it_costs_no_operation_where_nobody_measures():
    times = StepTimes(is_on=False)
    graph = tf.function(lambda value: times.of_input(lambda: value + 1)).get_concrete_function(
        tf.TensorSpec([])
    )

    assert "Timestamp" not in {operation.type for operation in graph.graph.get_operations()}


def test_calls_add_up():
    times = StepTimes(is_on=True)
    times.add_call(0.5)
    times.add_call(1.5)

    assert times.read()[0, step_times.SECS_IN_STEPS] == 2.0
    assert times.take_numbers() == {}


def test_nothing_is_known_where_tensorflow_reads_no_clock(monkeypatch):
    monkeypatch.setattr(runtime, "is_deterministic", lambda: True)
    times = StepTimes(is_on=True)

    graph = tf.function(lambda value: times.of_input(lambda: value + 1)).get_concrete_function(
        tf.TensorSpec([])
    )

    assert "Timestamp" not in {operation.type for operation in graph.graph.get_operations()}
    assert len(times.read()) == 0
