"""Where two recorded runs differ, and what is said of it: without a program, on made recordings."""

import dataclasses

import numpy as np
import pytest

from kerasdist.comparison import recording
from kerasdist.comparison.comparison import compare, describe_rounding
from kerasdist.comparison.reasons import may_be_natural, reasons
from kerasdist.comparison.recording import Recording, Start, Step

START = np.array([1.0, 2.0, 3.0], "float32")
CHANGE = np.array([0.1, -0.2, 0.3], "float32")
STEP = Step(
    first=1,
    last=1,
    model=0,
    weights={"dense/kernel": START + CHANGE},
    slots={"sgd/iteration": np.array(1), "sgd/learning_rate": np.array(0.1)},
    logs={"loss": 2.0},
    examples=np.array([7, 8, 9], "uint32"),
)


@pytest.fixture
def record(tmp_path):
    """Writes what a run did, and returns it."""

    def write(*steps, workers=1, start=START):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for worker in range(workers):
            name = f"{worker}"
            weights = {"dense/kernel": start}
            recording.write(folder / name, "start-0", Start(name="model", weights=weights))
            for position, step in enumerate(steps):
                recording.write(folder / name, f"step-{position:06}", step)
        return Recording(folder)

    return write


def with_weights(values, **changes):
    return dataclasses.replace(STEP, weights={"dense/kernel": values}, **changes)


def test_equal_runs_are_equal(record):
    found = compare(record(STEP), record(with_weights(START + CHANGE + 1e-6), workers=2))

    assert found.is_equal
    assert 0 < found.largest < 2e-6
    assert found.num_steps == (1, 1)


def test_the_first_step_that_differs_is_found_with_the_largest_difference_first(record):
    second = dataclasses.replace(STEP, first=2, last=2, logs={"loss": 1.0, "mae": 1.0})
    other = dataclasses.replace(second, logs={"loss": 1.1, "mae": 1.2})

    found = compare(record(STEP, second), record(STEP, other))

    assert found.step and found.step.first == 2
    assert [(each.kind, each.name) for each in found.differences] == [
        ("log", "mae"),
        ("log", "loss"),
    ]
    assert found.differences[0].size == pytest.approx(0.2)


def test_nan_on_one_side_is_an_infinite_difference_and_on_both_none(record):
    nan = with_weights(np.array([1.0, np.nan, 3.0]))

    assert compare(record(nan), record(nan)).is_equal
    assert compare(record(STEP), record(nan)).differences[0].size == np.inf
    assert compare(record(nan), record(STEP)).differences[0].size == np.inf


def test_large_values_may_differ_by_more(record):
    truth, ours = with_weights(1000 * START), with_weights(1000 * START + 5e-3)

    assert compare(record(truth), record(ours)).is_equal


def test_half_precision_may_differ_by_more(record):
    truth = dataclasses.replace(STEP, dtype="float16")
    ours = with_weights(START + CHANGE + 1e-3, dtype="float16")

    assert compare(record(truth), record(ours)).is_equal


def test_a_variable_that_is_missing_or_of_another_shape_is_a_difference(record):
    assert not compare(record(STEP), record(with_weights(np.ones(2)))).is_equal
    assert not compare(record(STEP), record(dataclasses.replace(STEP, logs={}))).is_equal


def test_names_that_are_counted_otherwise_are_no_difference(record):
    other = dataclasses.replace(STEP, weights={"dense_1/kernel": START + CHANGE})

    assert compare(record(STEP), record(other)).is_equal


def reasons_of(truth, ours, *, num_replicas=2):
    return " ".join(reasons(compare(truth, ours), num_replicas=num_replicas))


@pytest.mark.parametrize(("factor", "num_replicas"), [(2, 2), (4, 4), (0.5, 2)])
def test_a_change_of_as_many_times_as_there_are_replicas_is_a_sum(record, factor, num_replicas):
    ours = record(with_weights(START + factor * CHANGE))

    text = reasons_of(record(STEP), ours, num_replicas=num_replicas)

    assert text.startswith(f"A sum over examples: the change in this step is {factor} times")


def test_a_change_of_another_multiple_is_a_mean_over_other_examples(record):
    text = reasons_of(record(STEP), record(with_weights(START + 1.3 * CHANGE)))

    assert text.startswith("A mean over other examples: the change in this step is 1.3 times")


def test_other_examples_are_the_reason_of_all_else(record):
    other = with_weights(START + 2 * CHANGE, examples=np.array([7, 8, 1], "uint32"))

    assert reasons_of(record(STEP), record(other)).startswith("The order of the data: step 1 read")


def test_the_same_examples_in_another_order_are_the_same_data(record):
    other = dataclasses.replace(STEP, examples=np.array([9, 8, 7], "uint32"))

    assert compare(record(STEP), record(other)).other_data_from is None


def test_what_16_bits_change_is_told_of_the_last_step(record, tmp_path):
    second = dataclasses.replace(STEP, first=2, last=2, logs={"loss": 9.0})
    other = with_weights(START + CHANGE + np.array([0, 2e-3, 0]), first=2, last=2)
    rounded = record(STEP, other)
    recording.write(tmp_path / "0" / "0", "allreduce_dtype", "float16")

    text = describe_rounding(record(STEP, second), rounded)

    assert text.startswith("gradients sent as float16: after 2 steps, weights differ by up to 2.0e")
    assert "(dense/kernel)" in text


def test_a_log_alone_is_said_to_be_one(record):
    text = reasons_of(record(STEP), record(dataclasses.replace(STEP, logs={"loss": 4.0})))

    assert text.startswith("Logs only: all variables are equal, and the log is 2 times")


def test_a_small_part_of_the_change_is_a_rounding(record):
    ours = with_weights(START + CHANGE + np.array([0, 1e-3, 0]))

    assert reasons_of(record(STEP), record(ours)).startswith("Rounding: ")


def test_weights_without_slots_that_differ_are_a_rounding_made_large(record):
    slots = {**STEP.slots, "adam/momentum": np.zeros(3)}
    truth = dataclasses.replace(STEP, slots=slots)
    ours = with_weights(START - CHANGE, slots=slots)

    text = reasons_of(record(truth), record(ours))

    assert text.startswith("Rounding, amplified by the optimizer")


def test_all_else_is_the_computation(record):
    ours = with_weights(START + CHANGE[::-1], has_own_step=True)
    truth = dataclasses.replace(STEP, has_own_step=True)

    assert "probably a train_step of its own" in reasons_of(record(truth), record(ours))


def test_a_run_with_fewer_steps_differs(record):
    text = reasons_of(record(STEP, dataclasses.replace(STEP, first=2, last=2)), record(STEP))

    assert text.startswith("The number of steps: 2 on one device, 1 on the deployment.")


def test_draws_and_statistics_are_the_reason_where_the_rest_is_equal(record):
    natural = {"draws": ("model/dropout",), "unsynchronized": ("normalization",)}
    truth = dataclasses.replace(STEP, **natural)
    found = compare(record(truth), record(with_weights(START + CHANGE[::-1])))
    alike = compare(record(STEP), record(STEP))

    texts = reasons(found, num_replicas=2, alike=alike)

    assert may_be_natural(found)
    assert texts[0].startswith("Random numbers, drawn in model/dropout")
    assert texts[1].startswith("Batch statistics of normalization")
    assert len(texts) == 2


def test_what_still_differs_with_draws_alike_is_told_beside_them(record):
    truth = dataclasses.replace(STEP, draws=("model/dropout",))
    ours = record(with_weights(START + 2 * CHANGE))
    found = compare(record(truth), ours)

    texts = reasons(found, num_replicas=2, alike=found)

    assert texts[0].startswith("Random numbers")
    assert texts[1].startswith("A sum over examples")
