"""What a step assigns by itself, which may not be the same on all replicas.

It never meets what the other replicas assign. A rehearsal compares it, by a number that says how
far what a variable has changed by is spread over the replicas: see `rehearsal`. What the steps that
count have made of it is compared now and then: see `training.report.drift`.
"""

import contextlib
import weakref
from collections.abc import Callable, Generator

import numpy as np
import tensorflow as tf

from kerasdist.private import collectives
from kerasdist.training.context import peers
from kerasdist.training.trial import compare, tolerances

# The states that have been told, of each model, and the models of which weights have been.
_told_states: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_told_weights: weakref.WeakSet = weakref.WeakSet()


def note_spreads(step: Callable, variables: list, spreads: list, data):
    """Runs a step, and notes how different what it assigns to weights is on the replicas.

    Args:
        step: Called with `data`, on each replica.
        variables: TensorFlow's. In a rehearsal the optimizer leaves the trained ones alone.
        spreads: Gets a list with a number for each of them, the same one from each replica: the
            standard deviation over the replicas as a fraction of the root mean square.
        data: The share of a replica.
    """
    before = [tf.convert_to_tensor(variable) for variable in variables]
    step(data)
    changes = [_sketch_of_change(*each) for each in zip(before, variables, strict=True)]
    sketches = np.array([changes, np.square(changes)])
    (sums,) = collectives.sum_over_replicas([tf.constant(sketches)])
    means, mean_squares = sums.numpy() / peers.num_replicas(tf.distribute.get_strategy())
    variances = np.maximum(mean_squares - means**2, 0.0)
    tiny = np.finfo("float64").tiny
    spreads.append(np.sqrt(variances / np.maximum(mean_squares, tiny)).tolist())


def _sketch_of_change(before, variable) -> float:
    """Returns a number that is the same where a variable has changed alike; 0.0 for rounding.

    Weights that are moved and moved back, as for a gradient nearby, keep their values but for that.
    """
    now = tf.convert_to_tensor(variable)
    if tf.reduce_all(tf.equal(before, now)):  # Nearly always, and cheaper than what follows.
        return 0.0
    before, now = (tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (before, now))
    change = now - before
    if tf.norm(change) <= tolerances.MOVED_BACK * tf.norm(before):
        return 0.0
    return float(tf.reduce_sum(change * tf.cos(tf.range(tf.size(change), dtype=tf.float64))))


def are_different(spreads: list) -> bool:
    """Whether one of the variables of `note_spreads` is not the same on all replicas."""
    return any(map(compare.deviates, spreads))


def describe_spreads(model, weights, states, spreads: list, num_replicas: int) -> list[str]:
    """Returns in words which weights and states are not the same on all replicas.

    Args:
        model: Whose they are.
        weights: Pairs of a name and a variable.
        states: The same.
        spreads: Of `note_spreads`, those of the weights first.
        num_replicas: In all.
    """
    left = iter(spreads)
    of_weights, of_states = (
        [name for name, _ in variables if compare.deviates(next(left))]
        for variables in (weights, states)
    )
    return describe_news(model, of_weights, of_states, num_replicas)


def describe_news(model, weights: list[str], states: list[str], num_replicas: int) -> list[str]:
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
        texts.append(_describe_assigned(weights, num_replicas))
    told = _told_states.setdefault(model, set())
    if new := [name for name in states if name not in told]:
        told.update(new)
        texts.append(_describe_states(new, num_replicas))
    return texts


@contextlib.contextmanager
def nobody_told(model) -> Generator[None]:
    """Lets what is described inside be news afterwards: nobody hears of it."""
    states, are_weights_told = set(_told_states.get(model, ())), model in _told_weights
    try:
        yield
    finally:
        _told_states[model] = states
        if not are_weights_told:
            _told_weights.discard(model)


def _describe_assigned(paths: list[str], num_replicas: int) -> str:
    return (
        f"What a step assigns to the trained weight {_first_of(paths)} is not the same on the "
        f"{num_replicas} replicas: each computes it from its own examples, so that they train "
        "different weights. Update them with `optimizer.apply(gradients, variables)`, or assign "
        "what all replicas share: a gradient of `tape.gradient`, which is that of the whole batch, "
        "or `kerasdist.global_mean(values)`."
    )


def _describe_states(names: list[str], num_replicas: int) -> str:
    return (
        f"What a step assigns to the state {_first_of(names)} is not the same on the "
        f"{num_replicas} replicas: each computes it from its own examples, and goes on with it, "
        "where one device computes it from the whole batch. The model that is saved has that of "
        "one replica. Assign what is of the whole batch: `kerasdist.global_mean(values)` and "
        "`kerasdist.global_sum(values)` of its examples, or, of other numbers, "
        '`tf.distribute.get_replica_context().all_reduce("SUM", numbers)`; for a queue of examples '
        "`all_gather(examples, axis=0)` of the same context."
    )


def _first_of(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
