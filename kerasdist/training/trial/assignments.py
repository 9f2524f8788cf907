"""What a step assigns by itself, which may not be the same on all replicas.

It never meets what the other replicas assign. A trial compares it, by how much the change of a
variable deviates over the replicas: see `run`. What the steps that count have made of it is
compared now and then: see `training.report.drift`.
"""

import contextlib
import weakref
from collections.abc import Generator

import keras

from kerasdist.training.trial import compare, words

# The states that have been told, of each model, and the models of which weights have been.
_told_states: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_told_weights: weakref.WeakSet = weakref.WeakSet()


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
    """Returns in words which weights and states are not the same, without those told before.

    Args:
        model: Whose they are.
        weights: The names of those that are not the same on all replicas.
        states: The same.
        num_replicas: In all.
    """
    texts = []
    if weights and model not in _told_weights:  # Those that follow are of the same step.
        _told_weights.add(model)
        texts.append(words.of_weights(weights, num_replicas))
    told = _told_states.setdefault(model, set())
    if new := [name for name in states if name not in told]:
        told.update(new)
        texts.append(words.of_states(new, num_replicas))
    return texts


@contextlib.contextmanager
def nobody_told(model: keras.Model) -> Generator[None]:
    """Lets what is described inside be news afterwards: nobody hears of it."""
    states, are_weights_told = set(_told_states.get(model, ())), model in _told_weights
    try:
        yield
    finally:
        _told_states[model] = states
        if not are_weights_told:
            _told_weights.discard(model)
