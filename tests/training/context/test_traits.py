"""Where the variables of a strategy live."""

from kerasdist.strategies.parameter_server import ParameterServerStrategy
from kerasdist.training.context import traits
from tests.strategies import each_strategy


@each_strategy
def test_replicas_hold_their_variables(strategy):
    assert not traits.has_remote_variables(strategy)
    assert not traits.keeps_own_pace(strategy)


def test_parameter_servers_hold_the_variables():
    # Without the servers that its constructor connects to.
    strategy = object.__new__(ParameterServerStrategy)

    assert traits.has_remote_variables(strategy)
    assert traits.keeps_own_pace(strategy)
