"""When a step is traced: once, unobserved by itself, and again where a trace asks for it."""

import types
from typing import Any

import pytest
import tensorflow as tf

from kerasdist.training.step.model_step import TraceAgainError
from kerasdist.training.step.step_graphs import StepGraphs


class Repeated:
    """Stands for batches that every replica may have as a whole."""

    def __init__(self, *, may_help=True):
        self.are_on = False
        self.may_help = may_help
        self.failures = []

    def switch(self, *, on):
        self.are_on = on

    def may_help_after(self, error):
        return self.may_help and not self.are_on

    def warn_of(self, failure):
        self.failures.append(failure)


class Steps:
    """Has a step that notes its traces, each of which may end in an error."""

    def __init__(self, repeated, *errors, run_eagerly=False):
        self.repeated, self.errors = repeated, [*errors]
        self.traces, self.num_expected = [], 0
        model: Any = types.SimpleNamespace(run_eagerly=run_eagerly)
        self.graphs = StepGraphs(model, repeated, expect_trace=self.expect_trace)

    def expect_trace(self):
        self.num_expected += 1

    def run(self, *, is_unobserved=False):
        return int(self.graphs.run(self.step, tf.constant(1), is_unobserved=is_unobserved))

    def step(self, number):
        with self.graphs.tracing():
            self.traces.append("whole" if self.repeated.are_on else "parts")
            if self.errors:
                raise self.errors.pop(0)
        return number + 1

    def fail(self, number):
        with self.graphs.tracing():
            tf.debugging.assert_equal(number, 2)
        return number


def test_a_step_is_traced_once_and_unobserved_ones_by_themselves():
    steps = Steps(Repeated())
    assert [steps.run() for _ in range(3)] == [2, 2, 2]
    assert [steps.run(is_unobserved=True) for _ in range(2)] == [2, 2]
    assert len(steps.traces) == steps.num_expected == 2

    steps.graphs.clear()
    steps.run()
    assert len(steps.traces) == 3


def numbers():
    return iter(tf.data.Dataset.range(3))


class Readers(Steps):
    """Has a step that reads a number."""

    def read(self, iterator, *, is_unobserved=False):
        return int(self.graphs.run(self.read_step, iterator, is_unobserved=is_unobserved))

    def add(self, iterator, addend):
        return int(self.graphs.run(self.add_step, iterator, addend, is_unobserved=False))

    def read_step(self, iterator):
        return self.step(next(iterator))

    def add_step(self, iterator, addend):
        return next(iterator) + tf.cast(addend, tf.int64)


def test_an_iterator_that_is_known_is_read_as_before():
    steps, iterator = Readers(Repeated()), numbers()
    assert [steps.read(iterator) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(tf.errors.OutOfRangeError):
        steps.read(iterator)
    another = numbers()
    assert [steps.read(another) for _ in range(3)] == [1, 2, 3]
    assert len(steps.traces) == 1

    another = numbers()
    assert [steps.read(another), steps.read(another, is_unobserved=True)] == [1, 2]
    steps.repeated.switch(on=True)
    assert steps.read(another) == 3
    assert steps.traces == ["parts", "parts", "whole"]


def test_a_number_of_python_is_part_of_a_trace():
    steps, iterator = Readers(Repeated()), numbers()
    assert [steps.add(iterator, addend) for addend in (5, 5, 7)] == [5, 6, 9]
    iterator = numbers()
    assert [steps.add(iterator, tf.constant(each)) for each in (5, 5, 7)] == [5, 6, 9]


def test_an_iterator_is_known_until_there_are_other_graphs():
    steps, iterator = Readers(Repeated()), numbers()
    assert [steps.read(iterator) for _ in range(2)] == [1, 2]
    steps.graphs.clear()
    assert steps.read(iterator) == 3
    assert len(steps.traces) == 2


def test_functions_that_tensorflow_runs_eagerly_are_not_traces():
    steps, iterator = Readers(Repeated()), numbers()
    assert [steps.read(iterator) for _ in range(2)] == [1, 2]
    tf.config.run_functions_eagerly(True)
    try:
        assert steps.read(iterator) == 3
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(steps.traces) == 2  # The second one is the step itself.


def test_an_eager_step_is_run_as_it_is():
    steps = Steps(Repeated(), run_eagerly=True)
    steps.run()
    steps.run()
    assert (len(steps.traces), steps.num_expected) == (2, 0)


def test_a_trace_that_asks_for_another_gets_it():
    steps = Steps(Repeated(), TraceAgainError(), TraceAgainError())
    assert steps.run() == 2
    assert steps.traces == ["parts"] * 3


def test_a_step_that_fails_with_parts_gets_whole_batches_and_it_is_said():
    failure = ValueError("needs all")
    steps = Steps(Repeated(), failure)

    assert steps.run() == 2
    assert steps.traces == ["parts", "whole"]
    assert steps.repeated.failures == [failure]


def test_a_step_that_fails_with_whole_batches_too_raises_what_it_did_with_parts():
    steps = Steps(Repeated(), ValueError("with parts"), ValueError("with all"))

    with pytest.raises(ValueError, match="with parts"):
        steps.run()
    assert not steps.repeated.are_on
    assert not steps.repeated.failures
    assert steps.run() == 2
    assert steps.traces == ["parts", "whole", "parts"]


def test_a_step_that_whole_batches_cannot_help_fails():
    steps = Steps(Repeated(may_help=False), ValueError("needs all"))
    with pytest.raises(ValueError, match="needs all"):
        steps.run()
    assert steps.traces == ["parts"]


def test_a_step_that_fails_while_it_runs_is_not_run_again():
    steps = Steps(Repeated())
    assert steps.run() == 2

    with pytest.raises(tf.errors.InvalidArgumentError):
        steps.graphs.run(steps.fail, tf.constant(1), is_unobserved=False)
    assert not steps.repeated.are_on


@pytest.mark.parametrize("is_told", [True, False])
def test_a_trace_that_fails_leaves_it_to_the_check_that_follows_to_say_so(is_told):
    failure = ValueError("needs all")
    steps = Steps(Repeated(), failure)
    steps.graphs.trace(steps.step, tf.constant(1), is_unobserved=False)
    assert not steps.repeated.failures

    steps.graphs.tell_failure(is_told=is_told)
    steps.run()
    assert steps.repeated.failures == ([] if is_told else [failure])
