"""All workers end at the same step, of which each must ask."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kerasdist.checkpoints import Preemption
from kerasdist.training.context import peers, running_call
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
    monkeypatch.setattr(peers, "gather", lambda strategy, row: np.array([[0.0], [1.0]]))
    monkeypatch.setattr(peers, "tasks", lambda strategy: ["worker 0", "worker 1"])
    step = StepFunction(is_stop_requested=is_stop_requested)
    model: Any = SimpleNamespace(distribute_strategy=None, train_function=step)

    preemption = Preemption()

    assert preemption.is_due(model) == is_due
    assert preemption.told == (["worker 1"] if is_due else [])


def test_at_the_end_workers_ask_each_other_always(monkeypatch):
    def gather(strategy, row):
        asked.append(row.tolist())
        return np.array([[1.0], [1.0]])

    asked, preemption = [], Preemption()
    model: Any = SimpleNamespace(distribute_strategy=None)
    monkeypatch.setattr(peers, "gather", gather)
    monkeypatch.setattr(peers, "tasks", lambda strategy: ["worker 0", "worker 1"])

    assert preemption.is_due_at_end(model)
    assert asked == [[False]]
    assert preemption.told == ["worker 0", "worker 1"]


def test_term_that_comes_after_the_last_question_is_left_to_the_program(monkeypatch, model):
    def tell(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return np.array([[0.0]])

    heard, preemption = [], Preemption()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
    monkeypatch.setattr(peers, "gather", tell)
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
