"""What a step writes is plain on replicas, and shared by the workers of parameter servers."""

import contextlib

import tensorflow as tf

from kerasdist.strategies.parameter_server import ParameterServerStrategy
from kerasdist.training.context.deployment import Deployment
from kerasdist.training.hooks import step_variables
from tests.strategies import each_strategy


@each_strategy
def test_they_are_plain_ones_on_replicas_inside_a_scope_too(strategy):
    with strategy.scope(), step_variables.being_made(strategy):
        assert not tf.distribute.has_strategy()


@each_strategy
def test_they_are_told_from_those_of_a_program(strategy):
    with step_variables.being_made(strategy):
        own = tf.Variable(0.0)
    assert step_variables.is_one(own)
    assert not step_variables.is_one(tf.Variable(0.0))


def test_parameter_servers_hold_them(monkeypatch):
    entered = []

    @contextlib.contextmanager
    def scope(strategy):
        entered.append(strategy)
        yield

    # Without the servers that its constructor connects to.
    strategy = object.__new__(ParameterServerStrategy)
    strategy.deployment = Deployment(has_remote_variables=True)
    monkeypatch.setattr(ParameterServerStrategy, "scope", scope)

    with step_variables.being_made(strategy):
        assert entered == [strategy]
