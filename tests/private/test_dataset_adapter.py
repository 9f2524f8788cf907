"""Every private name of TensorFlow's datasets that is used is where it was."""

import time

import keras
import tensorflow as tf

from kerasdist.private import dataset_adapter, traced_graphs
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


def test_a_state_of_windows_is_told_from_others():
    windows = tf.data.Dataset.range(20).window(4).flat_map(lambda window: window)

    assert dataset_adapter.is_of_windows(state_of(iter(windows)))
    assert not dataset_adapter.is_of_windows(state_of(iter(shuffled())))


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


def test_a_dataset_says_what_it_was_made_of():
    dataset = tf.data.Dataset.zip(tf.data.Dataset.range(9), tf.data.Dataset.range(9))
    dataset = dataset.shuffle(5).map(lambda x, y: x, num_parallel_calls=2).repeat(3)
    dataset = dataset.batch(4, drop_remainder=True).cache("file").prefetch(2)

    lineage = dataset_adapter.lineage_of(dataset.with_options(tf.data.Options()))

    names = ["options", "prefetch", "cache", "batch", "repeat", "map", "shuffle", "zip"]
    assert list(map(dataset_adapter.transformation_of, lineage)) == names
    arguments = {
        **{"buffer_size": 2, "filename": b"file", "batch_size": 4},
        **{"count": 3, "num_parallel_calls": 2},
    }
    found = map(dataset_adapter.argument_of, lineage[1:6], arguments)
    assert list(found) == list(arguments.values())
    assert dataset_adapter.argument_of(lineage[3], "drop_remainder")
    assert dataset_adapter.argument_of(lineage[3], "num_parallel_calls") is None
    assert dataset_adapter.transformation_of(dataset.padded_batch(2)) == "padded_batch"


def test_a_part_of_a_dataset_says_how_large_it_is():
    for name in ("skip", "take"):
        made = getattr(tf.data.Dataset.range(9), name)(2)
        assert dataset_adapter.transformation_of(made) == name
        assert dataset_adapter.argument_of(made, "count") == 2


def test_the_function_of_a_map_is_called_again_as_it_was_traced():
    traces, offset = [], tf.constant(3)

    def add(x, others):
        traces.append(x)
        return {"sum": x + others["y"] + offset, "x": (x, x)}

    data = tf.data.Dataset.from_tensor_slices(([1, 2], {"y": [10, 20]})).map(add)

    function = dataset_adapter.function_of(data)
    again = tf.data.Dataset.from_tensors((5, {"y": 50})).map(lambda *element: function(element))

    assert [each["sum"].numpy() for each in again] == [58]
    assert again.element_spec == data.element_spec
    assert len(traces) == 1


def test_a_map_is_found_wherever_it_is():
    data = tf.data.Dataset.from_tensor_slices([1, 2])
    mapped = data.map(lambda x: x + 1)
    inside = data.interleave(lambda x: tf.data.Dataset.range(2).map(lambda y: y + 1))

    for dataset in (mapped, tf.data.Dataset.zip(data, mapped.shuffle(2)), inside.batch(2)):
        assert dataset_adapter.has_map(dataset)
    flat = data.interleave(lambda x: tf.data.Dataset.range(2).flat_map(tf.data.Dataset.range))
    assert not dataset_adapter.has_map(flat)
    assert dataset_adapter.has_map_inside(inside)
    assert not dataset_adapter.has_map_inside(inside.batch(2))


def operations_of_state():
    """Returns functions for `map`, by the operation in them whose results depend on the order."""
    variable, generator = tf.Variable(1), tf.random.Generator.from_seed(1)
    layer = keras.layers.RandomFlip(seed=1)
    return {
        "RandomUniform": lambda x: tf.random.uniform([]),
        "AssignAddVariableOp": lambda x: variable.assign_add(1),
        "EagerPyFunc": lambda x: tf.py_function(lambda x: x, [x], tf.int32),
        "RngReadAndSkip": lambda x: generator.uniform([]),
        "AssignVariableOp": lambda x: layer(tf.zeros([1, 2, 2, 3]), training=True),
    }


def test_operations_whose_results_depend_on_the_order_of_calls_are_found():
    data = tf.data.Dataset.from_tensor_slices([1, 2])

    for name, function in operations_of_state().items():
        inside = data.map(lambda x, f=function: tf.function(lambda y: f(y))(x))
        for mapped in (data.map(function), inside):
            assert dataset_adapter.operation_of_state(mapped) == name
        assert dataset_adapter.is_draw(name) == (name in ("RandomUniform", "RngReadAndSkip"))


def test_what_reads_checks_prints_and_draws_from_a_seed_of_its_own_may_come_in_any_order():
    variable = tf.Variable(1)

    def function(x):
        tf.debugging.assert_greater(x, -1)
        tf.print(x, output_stream="file:///dev/null")
        drawn = tf.random.stateless_uniform([], [x, 1], maxval=9, dtype=tf.int32)
        return tf.cond(x > 1, lambda: x + variable, lambda: drawn)

    mapped = tf.data.Dataset.from_tensor_slices([1, 2]).map(function)

    assert dataset_adapter.operation_of_state(mapped) is None


def test_the_graph_that_an_operation_calls_is_found():
    data = tf.data.Dataset.range(2).map(lambda x: tf.function(lambda y: y + 7)(x))

    calls = [
        operation
        for operation in dataset_adapter.graph_of(data).get_operations()
        if operation.type in ("PartitionedCall", "StatefulPartitionedCall")
    ]

    (graph,) = map(traced_graphs.called_graph, calls)
    assert graph is not None and "AddV2" in [operation.type for operation in graph.get_operations()]


def test_an_iterator_goes_on_in_the_midst_of_what_another_has_read():
    dataset, other = shuffled(), shuffled()
    first = iter(dataset)
    begin = state_of(first)
    next(first), next(first)
    now = state_of(first)
    iterator = iter(other)

    assert dataset_adapter.set_portable_state(iterator, begin, now)

    assert not dataset_adapter.has_less(now, begin)
    assert batches_of(iterator) == batches_of(first)
    assert batches_of(iter(other)) == batches_of(iter(dataset))
    assert dataset_adapter.has_less(state_of(first), begin)


def test_other_data_is_shuffled_as_that_of_a_program():
    dataset = shuffled().unbatch()
    (shuffle,) = (
        each
        for each in dataset_adapter.lineage_of(dataset)
        if dataset_adapter.transformation_of(each) == "shuffle"
    )
    other = dataset_adapter.shuffled_as(shuffle, tf.data.Dataset.range(100, 120))

    for _ in range(2):
        assert [int(each) - 100 for each in other] == [int(each) for each in dataset]


def test_all_inputs_of_a_dataset_are_found():
    data, other = tf.data.Dataset.range(9).batch(3), tf.data.Dataset.range(3)
    zipped = tf.data.Dataset.zip(data, {"other": other})

    assert dataset_adapter.inputs_of(zipped) == [data, other]
    names = dataset_adapter.transformations_of(zipped)
    assert sorted(names) == ["batch", "range", "range", "zip"]
    again = dataset_adapter.zipped_as(zipped, lambda each: each.skip(1))
    assert again.element_spec == zipped.element_spec
    assert len(list(again)) == 2


def test_the_numbers_of_enumerate_are_a_range():
    numbers, _ = dataset_adapter.inputs_of(tf.data.Dataset.range(9).shuffle(3).enumerate())
    copy = dataset_adapter.from_graph(
        dataset_adapter.serialized_graph(tf.data.Dataset.range(9).shuffle(3)),
        tf.TensorSpec([], tf.int64),
    )

    assert dataset_adapter.transformation_of(numbers) == "range"
    assert dataset_adapter.transformation_of(copy) == "remote"


def test_other_texts_have_another_digest():
    digests = {
        dataset_adapter.digest_of_texts(tf.data.Dataset.from_tensor_slices(texts).shuffle(2))
        for texts in (["a", "b"], ["b", "a"], ["ab", ""], ([1, 2], ["a", "b"]))
    }

    assert len(digests) == 3


def test_what_buffers_may_hold_is_estimated_from_their_specs():
    images = tf.data.Dataset.from_tensors(tf.zeros([10, 10, 3])).repeat()
    texts = tf.data.Dataset.from_tensors("text").shuffle(1000)

    assert dataset_adapter.num_bytes_held(images.shuffle(100).batch(2), 2) == 100 * 1200
    assert dataset_adapter.num_bytes_held(images.batch(2).prefetch(3), 2) == 3 * 2 * 1200
    automatic = images.batch(2).prefetch(tf.data.AUTOTUNE)
    assert dataset_adapter.num_bytes_held(automatic, 2) >= 8 * 2 * 1200
    assert dataset_adapter.num_bytes_held(texts, None) > 10_000_000
