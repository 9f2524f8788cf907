"""Who reads the data of asynchronous workers."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import tensorflow_adapter
from kerasdist.training.parameter_servers.data_source import caches_an_order


def noise(x):
    return x + tf.random.normal([])


def shuffled(x):
    return tf.data.Dataset.from_tensor_slices(x).shuffle(5)


ORDERS_ARE_KEPT = {
    "no cache": (lambda data: data.shuffle(10).batch(2), False),
    "shuffled after it": (lambda data: data.cache().shuffle(10).map(noise), False),
    "nothing drawn": (lambda data: data.map(lambda x: x + 1).cache(), False),
    "shuffled": (lambda data: data.shuffle(10).batch(2).cache().prefetch(2), True),
    "in a file": (lambda data: data.shuffle(10).map(lambda x: x + 1).cache("file"), True),
    "shuffled inside": (lambda data: data.batch(5).flat_map(shuffled).cache(), True),
    "random numbers inside": (lambda data: data.map(tf.function(noise)).cache(), True),
    "random numbers": (lambda data: data.map(noise).cache(), True),
    "one of two": (lambda data: tf.data.Dataset.zip(data, data.shuffle(3)).cache(), True),
}


@pytest.mark.parametrize("name", ORDERS_ARE_KEPT)
def test_a_cache_keeps_the_order_of_what_stands_before_it(name):
    arrange, expected = ORDERS_ARE_KEPT[name]
    dataset = arrange(tf.data.Dataset.from_tensor_slices(np.arange(10, dtype="float32")))
    graph = tf.compat.v1.GraphDef.FromString(tensorflow_adapter.serialized(dataset).numpy())

    assert caches_an_order(graph) is expected
