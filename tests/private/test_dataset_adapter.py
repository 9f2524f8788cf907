"""Every private name of TensorFlow's datasets that is used is where it was."""

import time

import tensorflow as tf

from kerasdist.private import dataset_adapter
from tests import strategies


def test_dataset_is_the_same_from_its_graph():
    dataset = tf.data.Dataset.range(3).map(lambda number: 2 * number)

    graph = dataset_adapter.serialized_graph(dataset)

    again = dataset_adapter.from_graph(graph, dataset.element_spec)
    assert [int(number) for number in again] == [0, 2, 4]


def test_iterator_begins_in_the_state_of_another_one():
    def shuffled():
        return tf.data.Dataset.range(20).shuffle(20, seed=1).batch(20)

    dataset = shuffled()
    first, second = ([next(iter(dataset)).numpy().tolist()] for _ in range(2))
    dataset = shuffled()
    iter(dataset)
    state = dataset_adapter.position_state(iter(dataset))

    again = [batch.numpy().tolist() for batch in dataset_adapter.iterator_over(shuffled(), state)]

    assert first != again == second


def test_batch_spec_opens_the_batch_axis_of_plain_and_distributed_data():
    dataset = tf.data.Dataset.from_tensors(tf.zeros([4, 3]))
    distributed = strategies.get("2 replicas").experimental_distribute_dataset(dataset)

    for spec in (dataset.element_spec, distributed.element_spec):
        assert dataset_adapter.batch_spec(spec).shape == (None, 3)


def state_of(iterator) -> bytes:
    state = dataset_adapter.portable_state(iterator)
    assert state is not None
    return state


def batches_of(iterator):
    return [batch.numpy().tolist() for batch in iterator]


def shuffled():
    tf.random.set_seed(7)
    return tf.data.Dataset.range(20).shuffle(10).batch(4).prefetch(2)


def test_an_iterator_goes_on_in_the_state_of_another():
    dataset, other = shuffled(), shuffled()
    states, orders = [], []
    for _ in range(4):
        iterator = iter(dataset)
        states.append(state_of(iterator))
        orders.append(batches_of(iterator))

    iterator = iter(other)
    assert dataset_adapter.set_portable_state(iterator, states[2])

    assert batches_of(iterator) == orders[2] != orders[3]
    assert batches_of(iter(other)) == orders[3]


def test_an_iterator_takes_no_state_of_another_pipeline():
    state = state_of(iter(shuffled()))

    for dataset in (shuffled().skip(1), tf.data.Dataset.range(20).shuffle(9).batch(4).prefetch(2)):
        assert not dataset_adapter.set_portable_state(iter(dataset), state)
    assert not dataset_adapter.set_portable_state(iter([1]), state)


def test_random_operations_and_python_have_no_state():
    noise = tf.data.Dataset.range(3).map(lambda _: tf.random.uniform([]))
    python = tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec([]))

    for iterator in (iter(noise), iter(python), iter(range(3))):
        assert dataset_adapter.portable_state(iterator) is None


def test_what_draws_from_a_state_of_its_own_is_found():
    generator = tf.random.Generator.from_seed(1)
    data = tf.data.Dataset.range(4)
    drawing = [
        data.map(lambda x: tf.random.uniform([]) + tf.cast(x, tf.float32)),
        data.batch(2).map(tf.random.shuffle).prefetch(1),
        data.map(lambda x: generator.normal([])),
    ]
    others = [
        data.shuffle(4),
        data.flat_map(lambda x: tf.data.Dataset.range(x).shuffle(2)),
        data.map(lambda x: tf.random.stateless_uniform([], [1, x])),
    ]

    assert list(map(dataset_adapter.draws, drawing)) == [True] * 3
    assert list(map(dataset_adapter.draws, others)) == [False] * 3
    assert [dataset_adapter.portable_state(iter(each)) for each in drawing] == [None] * 3


def test_jobs_of_a_data_service_are_found():
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()  # Asked when a dataset is read, and not before.
    rows = tf.data.Dataset.range(9).batch(3)
    served, own = (
        rows.apply(service.distribute("parallel_epochs", dispatcher.target, job_name=name))
        for name in ("job", None)
    )

    jobs = {"job": served.map(lambda x: x).prefetch(2), "": own}
    for name, dataset in jobs.items():
        assert dataset_adapter.service_jobs(dataset) == [name]
    for dataset in (rows, [1, 2]):
        assert dataset_adapter.service_jobs(dataset) == []


def test_shuffles_are_found_in_all_inputs():
    one = tf.data.Dataset.range(9).shuffle(5)
    other = tf.data.Dataset.range(9).shuffle(7).map(lambda x: x).prefetch(tf.data.AUTOTUNE)

    assert dataset_adapter.num_shuffled(tf.data.Dataset.zip(one, other).batch(2)) == 12
    assert dataset_adapter.num_shuffled([1, 2]) == 0


def test_shuffles_are_found_in_what_was_made_of_itself():
    dataset = tf.data.Dataset.range(9).shuffle(5)
    for _ in range(40):
        dataset = dataset.concatenate(dataset)

    assert dataset_adapter.num_shuffled(dataset) == 5


def test_the_files_of_caches_are_found_in_all_inputs():
    one, other = (tf.data.Dataset.range(3).cache(path) for path in ("", "/folder/file"))

    assert dataset_adapter.cache_files(tf.data.Dataset.zip(one, other).batch(2)) == ["/folder/file"]
    assert dataset_adapter.cache_files([1, 2]) == []


def test_the_batch_size_of_a_dataset_is_found():
    rows = tf.data.Dataset.range(9)

    assert dataset_adapter.batch_size_of(rows.batch(4).map(lambda x: x).prefetch(2)) == 4
    assert dataset_adapter.batch_size_of(rows.batch(4).unbatch().batch(3)) == 3
    for unknown in (rows, tf.data.Dataset.zip(rows.batch(2), rows.batch(2)), [1], None):
        assert dataset_adapter.batch_size_of(unknown) is None


def test_without_prefetch_no_more_is_read_than_asked():
    read = []

    def numbers():
        for number in range(50):
            read.append(number)
            yield number

    spec = tf.TensorSpec([], tf.int64)
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=spec).prefetch(9)

    iterator = iter(dataset_adapter.without_prefetch(dataset))
    next(iterator), next(iterator)
    time.sleep(0.2)

    assert read == [0, 1]
