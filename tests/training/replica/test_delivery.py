"""Gradients that are where the variables are."""

from kerasdist.training.replica.delivery import LocalDelivery


def test_gradients_are_handed_to_the_optimizer_as_they_are():
    delivery = LocalDelivery()

    with delivery.updating("optimizer"):
        given = delivery.apply(lambda *arguments: arguments, "optimizer", ["g"], ["v"])

    assert given == ("optimizer", ["g"], ["v"])
