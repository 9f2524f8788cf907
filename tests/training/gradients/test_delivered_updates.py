"""What a step changes beside its gradients goes to the variables by the step's delivery."""

import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from kerasdist.training.context import traits
from kerasdist.training.data import batches
from kerasdist.training.gradients import delivered_updates
from kerasdist.training.replica import replicas
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.replica.replicas import StepOptions
from kerasdist.training.step import replica_run
from tests import strategies


class Recorder(LocalDelivery):
    """Notes what it is asked for, and changes nothing."""

    def __init__(self):
        self.asked: list[str] = []

    def clip(self, original, optimizer, gradients):
        self.asked.append("clip")
        return super().clip(original, optimizer, gradients)

    def assign_number(self, original, optimizer, variable, value):
        self.asked.append("assign_number")

    def add_in_place(self, variable, value):
        self.asked.append("add_in_place")

    def change(self, function, variables):
        self.asked.append("change")


def original(*arguments) -> tuple:
    """Stands for Keras' own function."""
    return arguments


def ask_all(optimizer: Any) -> None:
    """Asks for each of the updates once."""
    replica: Any = replicas.current()
    clipped = delivered_updates.clip(replica, original, optimizer, ["gradient"])
    assert clipped == (optimizer, ["gradient"])
    delivered_updates.assign_number(replica, original, optimizer, "iterations", 1)
    delivered_updates.average(replica, original, optimizer, ["weight"])
    delivered_updates.decay(replica, original, optimizer, ["weight"])
    variable: Any = types.SimpleNamespace(value=tf.constant(1))
    delivered_updates.assign_add(original, variable, 1)


@pytest.mark.parametrize(
    ("is_remote", "expected"),
    [
        (True, ["clip", "assign_number", "change", "change", "add_in_place"]),
        (False, ["clip", "assign_number"]),
    ],
)
def test_what_reaches_variables_of_others_is_delivered(monkeypatch, is_remote, expected):
    monkeypatch.setattr(traits, "has_remote_variables", lambda strategy: is_remote)
    strategy, recorder = strategies.get("one device"), Recorder()
    shares = batches.shares_of(tf.constant([1.0]), strategy)

    def step(data):
        ask_all(types.SimpleNamespace(use_ema=True))
        return data

    replica_run.run(strategy, step, shares, options=StepOptions(make_delivery=lambda: recorder))

    assert recorder.asked == expected


def test_outside_a_step_keras_does_it():
    assert delivered_updates.assign_add(original, keras.Variable(1.0), 1)[1] == 1
