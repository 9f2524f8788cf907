"""Where the variables of a strategy live."""

import tensorflow as tf

from kerasdist.strategies.parameter_server import ParameterServerStrategy
from kerasdist.training import traits
from tests.strategies import each_strategy


@each_strategy
def test_replicas_hold_their_variables_and_share_plain_ones(strategy):
    assert not traits.has_remote_variables(strategy)
    assert not traits.keeps_own_pace(strategy)

    with traits.shared_scope(strategy):
        assert not tf.distribute.has_strategy()


def test_parameter_servers_hold_the_variables_and_what_is_shared(monkeypatch):
    # Without the servers that its constructor connects to.
    strategy = object.__new__(ParameterServerStrategy)
    monkeypatch.setattr(ParameterServerStrategy, "scope", lambda self: "the scope")

    assert traits.has_remote_variables(strategy)
    assert traits.keeps_own_pace(strategy)
    assert traits.shared_scope(strategy) == "the scope"
