"""Weights nearby: what is computed stays nearly the same there, and rounding does not."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.trial import nearby_weights
from tests import strategies


def test_each_replica_moves_its_own_copies_and_each_number_by_itself():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    (kernel,) = model.trainable_variables
    kernel.assign(tf.ones([3, 2]))

    def step(replica):
        return tf.convert_to_tensor(kernel.value) if replica == 0 else None

    def replica_fn():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        if tf.get_static_value(replica) == 0:
            nearby_weights.step_nearby(step, model, 1)(0)

    strategy.run(replica_fn)

    moved, unmoved = (each.numpy() for each in strategy.experimental_local_results(kernel.value))
    assert 1e-3 < np.abs(moved - 1).max() < 2.1e-3  # A thousandth along each of two axes.
    assert len(set(moved.ravel())) == 6
    assert unmoved.tolist() == np.ones((3, 2)).tolist()


def test_only_numbers_are_moved_and_other_seeds_move_them_otherwise():
    given = {"a": tf.ones([4]), "b": tf.constant([1, 2]), "c": tf.ones([])}

    first, second = (nearby_weights.numbers_nearby(given, seed) for seed in (1, 2))

    assert first["b"].numpy().tolist() == [1, 2]
    assert (first["a"] != second["a"]).numpy().all()
    assert first["c"] != second["c"]
