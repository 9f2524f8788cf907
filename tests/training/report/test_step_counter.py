"""The steps of calls, over epochs."""

from kerasdist.training.report.step_counter import StepCounter


def test_a_call_has_the_steps_since_the_one_before():
    counter = StepCounter()

    assert [counter.advance(batch) for batch in (0, 1, 4, 6)] == [1, 1, 3, 2]


def test_an_epoch_begins_anew():
    counter = StepCounter()

    assert [counter.advance(batch) for batch in (4, 2, 4, 4)] == [5, 3, 2, 5]
