"""What a step would have done is known, and it has done nothing."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.trial import undone_run
from tests import strategies


def test_updates_of_a_step_are_known_and_undone():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
        counter = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    before = model.get_weights()

    def step(data):
        counter.assign_add(1)
        return model.train_step((data, data))

    shares = batches.shares_of(tf.ones([4, 1]), strategy)
    found = undone_run.run(strategy, step, shares, is_whole=False, weighs_loss=True)

    first, second = (paths for [(paths, _)] in (each.updates for each in found))
    assert first == second == [model.weights[0].path]
    assert not any(each.asks_for_number for each in found)
    assert int(counter.read_value()) == int(model.optimizer.iterations) == 0
    np.testing.assert_array_equal(model.get_weights(), before)
