"""Describe what a step assigns by itself, where it is not the same on all replicas.

It never meets what the other replicas assign. A trial compares it, by how much the change of a
variable deviates over the replicas: see `run`. What the steps that count have made of it is
compared now and then: see `training.report.drift`.
"""

import contextlib
from collections.abc import Generator

import keras

from kerasdist.support import memory
from kerasdist.training.trial import compare, words


def describe(
    model: keras.Model,
    weights: list[tuple],
    states: list[tuple],
    deviations: list[float],
    num_replicas: int,
) -> list[str]:
    """Returns in words which weights and states are not the same on all replicas.

    Args:
        model: Whose they are.
        weights: Pairs of a name and a variable.
        states: The same.
        deviations: See `Outcome.deviations`; those of the weights first.
        num_replicas: In all.
    """
    left = iter(deviations)
    of_weights, of_states = (
        [name for name, _ in variables if compare.deviates(next(left))]
        for variables in (weights, states)
    )
    return describe_news(model, of_weights, of_states, num_replicas)


def describe_news(
    model: keras.Model, weights: list[str], states: list[str], num_replicas: int
) -> list[str]:
    """Returns in words which weights and states newly are not the same on all replicas.

    Args:
        model: Whose they are.
        weights: The names of those that are not the same on all replicas.
        states: The same.
        num_replicas: In all.
    """
    texts, notes = [], memory.of_model(model)
    if weights and not notes.are_weights_told:  # Those that follow are of the same step.
        notes.are_weights_told = True
        texts.append(words.of_weights(weights, num_replicas))
    if new := [name for name in states if name not in notes.told_states]:
        notes.told_states.update(new)
        texts.append(words.of_states(new, num_replicas))
    return texts


@contextlib.contextmanager
def nobody_told(model: keras.Model) -> Generator[None]:
    """Lets what is described inside be news afterwards: nobody hears of it."""
    notes = memory.of_model(model)
    states, are_weights_told = set(notes.told_states), notes.are_weights_told
    try:
        yield
    finally:
        notes.told_states, notes.are_weights_told = states, are_weights_told
