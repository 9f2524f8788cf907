"""Who reads the data of asynchronous workers."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.private import dataset_adapter
from kerasdist.training.data.transformations import has_variables
from kerasdist.training.parameter_servers.data_source import (
    WorkerDataSource,
    caches_an_order,
    looked_at,
    shuffles_late,
)
from tests import strategies

CLUSTER = Cluster(
    jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, task=Task("chief", 0)
)
REMOTE = SimpleNamespace(coordinator=None, num_to_aggregate=None, is_deterministic=False)


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

    assert caches_an_order(graph_of(arrange)) is expected


SHUFFLES_LATE = {
    "one": (lambda data: data.shuffle(3).repeat(2).batch(2), False),
    "beside another": (lambda data: tf.data.Dataset.zip(data.shuffle(3), data.shuffle(3)), False),
    "inside": (lambda data: data.shuffle(3).batch(5).flat_map(shuffled), False),
    "before another": (lambda data: data.shuffle(3).map(noise).shuffle(3).batch(2), True),
    "in a part": (lambda data: tf.data.Dataset.zip(data, data.shuffle(3)).shuffle(3), True),
    "after another ended": (lambda data: data.concatenate(data.shuffle(3)).batch(2), True),
}


@pytest.mark.parametrize("name", SHUFFLES_LATE)
def test_a_shuffle_begins_late_where_it_is_behind_another(name):
    arrange, expected = SHUFFLES_LATE[name]

    assert shuffles_late(graph_of(arrange)) is expected


def graph_of(arrange):
    dataset = arrange(tf.data.Dataset.from_tensor_slices(np.arange(10, dtype="float32")))
    return dataset_adapter.definition_of(dataset)


def noisy(data):
    return data.map(noise)


def scaled(data):
    rate = tf.Variable(2.0)
    return data.map(tf.function(lambda x: x * rate)).batch(2)


def drawn(data):
    generator = tf.random.Generator.from_seed(1)
    return data.map(lambda x: x + generator.normal([]))


def augmented(data):
    layer = keras.layers.RandomBrightness(0.5, seed=1)
    return data.map(lambda x: layer(tf.fill([2, 2, 3], x), training=True))


def counted(data):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    return data.map(lambda x: table.lookup(tf.cast(x, tf.int64)))


def looked_up(data):
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2.0]))
    table = tf.lookup.StaticHashTable(pairs, 0.0)
    return data.map(lambda x: table.lookup(tf.cast(x, tf.int64)))


def adapted(data):
    mean, ids = keras.layers.Normalization(axis=None), keras.layers.IntegerLookup()
    mean.adapt(data.batch(5))
    ids.adapt(data.map(lambda x: tf.cast(x, tf.int64)).batch(5))
    return data.batch(2).map(lambda x: (mean(x), ids(tf.cast(x, tf.int64))))


@pytest.mark.parametrize("arrange", [scaled, drawn, augmented, counted])
def test_a_variable_of_the_data_changes(arrange):
    assert has_variables(graph_of(arrange))


@pytest.mark.parametrize("arrange", [noisy, looked_up, adapted])
def test_what_never_changes_is_no_variable(arrange):
    assert not has_variables(graph_of(arrange))


def test_the_chief_reads_what_is_cached_in_a_file():
    strategy = strategies.spanning(CLUSTER, remote=REMOTE)
    dataset = tf.data.Dataset.range(5).cache("file").batch(2)

    assert not WorkerDataSource(dataset, strategy).is_on_workers


def test_the_chief_alone_reads_what_a_data_service_gives_each_reader_anew():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    dataset = tf.data.Dataset.range(5).batch(2)
    dataset = dataset.apply(service.distribute("parallel_epochs", dispatcher.target))

    assert not WorkerDataSource(dataset, strategies.spanning(CLUSTER, remote=REMOTE)).is_on_workers
    assert looked_at(dataset) is None


def test_the_chief_reads_what_synchronous_workers_would_shuffle_twice():
    dataset = tf.data.Dataset.range(5).shuffle(3).map(lambda x: x + 1).shuffle(3).batch(2)
    remote = SimpleNamespace(**{**vars(REMOTE), "num_to_aggregate": 2})

    source = WorkerDataSource(dataset, strategies.spanning(CLUSTER, remote=remote))

    assert not source.is_on_workers


def test_a_variable_of_a_server_is_named(monkeypatch):
    def serialized_graph(dataset):
        raise tf.errors.FailedPreconditionError(
            *(None, None),
            "Failed to serialize the graph: Trying to access resource dense/kernel/0 located in "
            "device /job:ps/replica:0/task:0/device:CPU:0 from device /job:chief",
        )

    monkeypatch.setattr(dataset_adapter, "serialized_graph", serialized_graph)
    strategy = strategies.spanning(CLUSTER, remote=REMOTE)

    with pytest.raises(
        ValueError, match=r"'dense/kernel', which .* outside of `strategy.scope\(\)`"
    ):
        WorkerDataSource(tf.data.Dataset.range(5).batch(2), strategy)


def test_a_look_at_the_data_leaves_the_order_of_its_shuffle():
    def make():
        keras.utils.set_random_seed(3)
        return tf.data.Dataset.range(20).shuffle(20, seed=4).batch(4)

    expected = [np.concatenate(list(made.as_numpy_iterator())) for made in [make()] for _ in "12"]
    dataset = make()

    copy = looked_at(dataset)
    assert copy is not None

    np.testing.assert_array_equal(next(iter(copy)), expected[0][:4])
    for order in expected:
        np.testing.assert_array_equal(np.concatenate(list(dataset.as_numpy_iterator())), order)
