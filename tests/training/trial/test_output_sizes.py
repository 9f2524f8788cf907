"""What the layers of a model give, in bytes."""

import keras
import pytest
import tensorflow as tf

from kerasdist.training.trial.output_sizes import OutputSizes


@pytest.mark.parametrize(("ratio", "expected"), [(1000, True), (2_000_000, False)])
def test_the_outputs_of_all_layers_and_calls_count(ratio, expected):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    sizes = OutputSizes()

    with sizes.counted(model):
        for _ in range(2):
            model(tf.zeros([3, 4]))
    model(tf.zeros([10**6, 4]))

    # 2 calls of 3 examples: 8 and 2 floats.
    assert sizes.allow(1) and sizes._num_bytes == 2 * 3 * (8 + 2) * 4
    assert sizes.allow(ratio) is expected
