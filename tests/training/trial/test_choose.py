"""The ladder of a trial: which examples are asked, and which mode is taken."""

import contextlib

import keras
import pytest
import tensorflow as tf

from kerasdist.training.trial import choose
from kerasdist.training.trial.choose import Found, Question, Trial
from kerasdist.training.trial.run import Mode
from tests import strategies

NOTHING, FOUND = [], ["found"]
FAILS = ValueError("no four largest of three")


class Answers(Trial):
    """Finds what it is told to find, by the number of examples."""

    answers: dict
    asked_for: list

    @staticmethod
    @contextlib.contextmanager
    def around(model):
        yield

    def try_parts(self):
        self.asked_for.append(self.how_many)
        self.model(tf.zeros([8, 4]))

    def compare(self, mode):
        answer = self.answers[self.how_many]
        if isinstance(answer, Exception):
            raise answer
        return Found(computed=answer)

    def describe(self, found, mode):
        return found.computed


def asked(answers: dict, size: int, kind: type[Trial] = Answers):
    """Returns the texts, and which numbers of examples were asked."""
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

    asked_for: list = []
    make = type("Asked", (kind,), {"answers": answers, "asked_for": asked_for})
    question = Question(model=model, step=model.train_step, batch=tf.TensorSpec([size, 4]))
    choice = choose.choose(make, question)
    return choice.texts, asked_for


@pytest.mark.parametrize(
    ("answers", "size", "expected"),
    [
        ({"few": FAILS, "all": FOUND}, 64, FOUND),
        ({"few": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": NOTHING, "most": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": FAILS, "most": FAILS}, 64, NOTHING),
        ({"few": NOTHING, "one": NOTHING}, 10**9, NOTHING),
        ({"few": NOTHING, "one": NOTHING}, 8, NOTHING),
        ({"few": NOTHING}, 2, NOTHING),
    ],
)
def test_others_are_asked_where_a_few_are_too_few_or_hide_something(answers, size, expected):
    assert asked(answers, size) == (expected, [*answers])


def test_fewer_sizes_are_asked_where_a_trial_has_fewer():
    class OfFewer(Answers):
        further_sizes = ("most",)

    assert asked({"few": NOTHING, "most": FOUND}, 64, OfFewer) == (FOUND, ["few", "most"])


class OfModes(Trial):
    """Finds, or fails, in the modes that it is told to."""

    further_sizes = ()
    wrong: dict
    compared: list

    @staticmethod
    @contextlib.contextmanager
    def around(model):
        yield

    def try_parts(self):
        pass

    def compare(self, mode):
        self.compared.append(mode)
        found = self.wrong.get(mode, False)
        if isinstance(found, Exception):
            raise found
        return Found(computed=found)

    def describe(self, found, mode):
        return ["found"] if found else []


@pytest.mark.parametrize("may_be_whole", [True, False])
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({}, Mode.DIVIDED),
        ({Mode.DIVIDED: True}, Mode.WHOLE),
        ({Mode.DIVIDED: True, Mode.WHOLE: True}, Mode.DIVIDED),
        ({Mode.DIVIDED: True, Mode.WHOLE: FAILS}, Mode.DIVIDED),
        ({Mode.DIVIDED: FAILS}, Mode.WHOLE),
    ],
)
def test_the_first_mode_that_gives_what_one_device_gives_is_taken(wrong, expected, may_be_whole):
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")

    compared: list = []
    make = type("Tried", (OfModes,), {"wrong": wrong, "compared": compared})
    question = Question(
        model=model,
        step=model.train_step,
        batch=tf.TensorSpec([8, 4]),
        may_be_whole=may_be_whole,
    )
    if wrong.get(Mode.DIVIDED) is FAILS and not may_be_whole:
        with pytest.raises(ValueError, match="no four largest"):
            choose.choose(make, question)
        return
    choice = choose.choose(make, question)

    assert choice.mode is (expected if may_be_whole else Mode.DIVIDED)
    assert len(choice.texts) == bool(wrong)
    # Losses of Keras' see one replica's examples, as they are means.
    assert Mode.DIVIDED_WITH_ALL_IN_LOSSES not in compared
