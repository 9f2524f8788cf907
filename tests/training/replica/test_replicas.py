"""What a replica knows of the global batch while its step is traced."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.replica import replicas
from kerasdist.training.step import replica_run
from tests import strategies
from tests.strategies import each_strategy

X = np.arange(1, 6, dtype="float32")


def shares_of(strategy, size=5):
    return batches.shares_of(tf.constant(X[:size]), strategy)


@each_strategy
@pytest.mark.parametrize("size", [1, 5])
def test_shares_add_up_to_one_over_the_global_batch(strategy, size):
    def step(data):
        now = replicas.current()
        assert now is not None
        return tf.constant(now.share), tf.constant([now.num_examples, now.global_num_examples])

    result = replica_run.run(strategy, step, shares_of(strategy, size))

    shares, numbers = zip(*result.outputs, strict=True)
    assert sum(map(float, shares)) == pytest.approx(1)
    assert sum(int(own) for own, _ in numbers) == size
    assert {int(total) for _, total in numbers} == {size}
    assert result.num_examples == size


def test_a_step_ends_with_an_error_too():
    strategy = strategies.get("one device")

    def step(data):
        assert replicas.current() is not None
        raise KeyError

    with pytest.raises(KeyError):
        replica_run.run(strategy, step, shares_of(strategy))

    assert replicas.current() is None
    assert replicas.losses() == {}
    assert replicas.divisors() == []


@each_strategy
def test_tensors_are_summed_over_the_replicas_with_examples_and_keep_their_shapes(strategy):
    def step(data):
        now = replicas.current()
        assert now is not None
        return now.sum([tf.reduce_sum(data), tf.ones([2, 1])])

    result = replica_run.run(strategy, step, shares_of(strategy, size=1))

    for total, ones in result.outputs:
        assert float(total) == 1.0
        assert ones.numpy().tolist() == [[1.0], [1.0]]


def made(kind):
    """Returns a replica with two of eight examples."""
    examples = {"num_examples": 2, "global_num_examples": 8, "share": 0.25}
    return kind(replica_id=1, keras_state={}, **examples)


@pytest.mark.parametrize(
    ("kind", "weight", "adds_up", "counts", "sees_one"),
    [
        (replicas.OneDevice, None, False, False, True),
        (replicas.WholeCopy, None, True, False, True),
        (replicas.Part, 0.25, True, True, False),
        (replicas.OfCustomLoop, None, True, True, False),
    ],
)
def test_each_kind_has_answers_of_its_own(kind, weight, adds_up, counts, sees_one):
    replica = made(kind)

    with replicas.entered(replica):
        assert replicas.sees_one_replica() == sees_one

    assert replica.weight_of_mean() == weight
    assert (replica.adds_up(), replica.counts()) == (adds_up, counts)
    assert not replicas.sees_one_replica()


def test_a_part_that_is_shown_all_examples_stands_for_one_device():
    part = made(replicas.Part)

    alone = part.as_one_device()

    assert isinstance(alone, replicas.OneDevice)
    assert (alone.replica_id, alone.num_examples, alone.share) == (0, 8, 1.0)
    assert alone.losses is part.losses  # What it notes, it notes for the part.
