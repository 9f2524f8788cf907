"""The outputs of `predict` are those of the examples, in their order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step.predict_function import PredictFunction, joined
from tests.strategies import each_strategy


class Doubled(keras.Model):
    def call(self, inputs):
        return {"doubled": 2 * inputs, "text": tf.strings.as_string(inputs)}


@each_strategy
@pytest.mark.parametrize("sizes", [[1], [5], [5, 4, 1]])
def test_each_example_has_one_output_in_order(strategy, sizes):
    with strategy.scope():
        predict = PredictFunction(Doubled())
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    outputs = predict([(part,) for part in parts])

    assert outputs["doubled"].numpy().tolist() == [2 * each for each in range(sum(sizes))]
    assert outputs["text"].numpy().tolist() == [b"%d" % each for each in range(sum(sizes))]


def test_ragged_outputs_are_joined_too():
    parts = [{"x": tf.ragged.constant([[1], [2, 3]])}, {"x": tf.ragged.constant([[4, 5, 6]])}]

    assert joined(*parts)["x"].to_list() == [[1], [2, 3], [4, 5, 6]]
