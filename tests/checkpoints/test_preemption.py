"""All workers end at the same step, of which each must ask."""

import os
import signal
from types import SimpleNamespace

import pytest

from kerasdist.checkpoints import Preemption
from kerasdist.training import peers, running_call
from tests import strategies
from tests.callbacks import hand_loop


class StepFunction:
    """That of one of two workers, of which another may want to stop."""

    def __init__(self, *, is_stop_requested=False):
        self.is_stop_requested = is_stop_requested

    def request_stop(self):
        self.is_stop_requested = True


@pytest.fixture
def model():
    return hand_loop.make_model(strategies.get("one device"))


def test_one_process_answers_its_own_term(model):
    preemption = Preemption()
    with running_call.entered("fit", model):
        preemption.watch(model)
        assert not preemption.is_due(model)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.is_due(model)


@pytest.mark.parametrize(("is_stop_requested", "is_due"), [(False, False), (True, True)])
def test_workers_ask_each_other_at_a_step_where_one_wants_to_stop(
    monkeypatch, is_stop_requested, is_due
):
    monkeypatch.setattr(peers, "count", lambda strategy: 2)
    monkeypatch.setattr(peers, "any_of", lambda strategy, here: True)
    step = StepFunction(is_stop_requested=is_stop_requested)
    model = SimpleNamespace(distribute_strategy=None, train_function=step)

    assert Preemption().is_due(model) == is_due


def test_at_the_end_workers_ask_each_other_always(monkeypatch):
    asked = []
    monkeypatch.setattr(peers, "any_of", lambda strategy, here: asked.append(here) or True)

    assert Preemption().is_due_at_end(SimpleNamespace(distribute_strategy=None))
    assert asked == [False]


def test_term_that_comes_after_the_last_question_is_left_to_the_program(monkeypatch, model):
    def tell(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    heard, preemption = [], Preemption()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
    monkeypatch.setattr(peers, "any_of", tell)
    try:
        with running_call.entered("fit", model):
            preemption.watch(model)
            assert not preemption.is_due_at_end(model)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert heard == ["TERM"]


def test_workers_whose_callback_compiles_the_model_have_no_step_to_stop(monkeypatch, model):
    monkeypatch.setattr(peers, "count", lambda strategy: 2)

    assert model.train_function is None
    assert not Preemption().is_due(model)
