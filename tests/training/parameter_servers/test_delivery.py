"""Gradients on their way to parameter servers; that they arrive is for the tests of clusters."""

import pytest

from kerasdist.training.parameter_servers.delivery import RemoteDelivery


class Optimizer:
    """Holds what an optimizer that changes nothing holds."""

    loss_scale_factor = clipnorm = global_clipnorm = clipvalue = None


def test_it_lets_go_of_the_optimizer_and_its_graph():
    delivery = RemoteDelivery()

    with pytest.raises(KeyError), delivery.updating(Optimizer()):
        raise KeyError

    assert not any(vars(delivery).values())


def test_gradients_that_are_clipped_first_are_not_sent():
    optimizer = Optimizer()
    optimizer.clipnorm = 1.0

    given = RemoteDelivery().apply(lambda *arguments: arguments, optimizer, ["g"], ["v"])

    assert given == (optimizer, ["g"], ["v"])
