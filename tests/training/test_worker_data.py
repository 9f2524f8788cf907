"""Who reads the data of asynchronous workers."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training import keras_adapter
from kerasdist.training.worker_data import caches_an_order

EXAMPLES = tf.data.Dataset.from_tensor_slices(np.arange(10, dtype="float32"))


def noise(x):
    return x + tf.random.normal([])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (EXAMPLES.batch(2), False),
        (EXAMPLES.shuffle(10).batch(2), False),
        (EXAMPLES.cache().shuffle(10).map(noise), False),
        (EXAMPLES.shuffle(10).batch(2).cache().prefetch(2), True),
        (EXAMPLES.shuffle(10).map(lambda x: x + 1).cache("file").shuffle(3), True),
        (EXAMPLES.map(noise).cache(), True),
        (tf.data.Dataset.zip(EXAMPLES, EXAMPLES.shuffle(3)).cache(), True),
        (EXAMPLES.map(lambda x: x + 1).cache(), False),
    ],
)
def test_a_cache_behind_a_shuffle_keeps_an_order(dataset, expected):
    graph = tf.compat.v1.GraphDef.FromString(keras_adapter.serialized(dataset).numpy())

    assert caches_an_order(graph) is expected
