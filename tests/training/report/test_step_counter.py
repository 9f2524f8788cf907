"""The steps of calls, over epochs."""

from kerasdist.training.context import running_call
from kerasdist.training.report.step_counter import StepCounter


def test_a_call_has_the_steps_since_the_one_before():
    counter = StepCounter(object())

    assert [counter.advance(batch) for batch in (0, 1, 4, 6)] == [1, 1, 3, 2]


def test_an_epoch_begins_anew():
    counter = StepCounter(object())

    assert [counter.advance(batch) for batch in (4, 2, 4, 4)] == [5, 3, 2, 5]


def test_the_last_call_of_an_epoch_has_the_steps_that_there_were_batches_for():
    model, seen = object(), []
    counter = StepCounter(model)

    with running_call.entered("fit", model):
        for num_made, reported in [(3, 2), (6, 5), (8, 8), (3, 2)]:
            running_call.note_steps(num_made)
            seen.append(counter.advance(reported))

    assert seen == [3, 3, 2, 3]
