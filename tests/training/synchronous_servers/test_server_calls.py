"""Functions that a parameter server runs for a worker, with one message; in one process."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.synchronous_servers import server_calls
from kerasdist.training.synchronous_servers.server_calls import Parcel, Reads, Shelf

SERVER = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_a_function_runs_with_its_arguments():
    @tf.function
    def worker(x):
        return server_calls.call(SERVER, lambda x, y: [x + y, x * y], x, tf.zeros([]) + 3)

    np.testing.assert_array_equal(worker(tf.constant([1.0, 2.0])), [[4, 5], [3, 6]])


def test_a_function_takes_nothing_from_outside():
    @tf.function
    def worker(x):
        return server_calls.call(SERVER, lambda y: [x + y], tf.zeros([]) + 3)

    with pytest.raises(AssertionError):
        worker(tf.constant(1.0))


def test_a_worker_reads_variables_with_one_operation():
    variables = [keras.Variable(np.full(shape, 1.5, "float32")) for shape in ([2, 3], [4])]
    count = keras.Variable(7, dtype="int64", trainable=False)
    remote = [each.value for each in (*variables, count)]
    reads = Reads(remote)

    @tf.function
    def worker():
        fetch = reads.fetched("of another server", [])
        return fetch(remote[::-1])

    variables[1].assign([1, 2, 3, 4])
    number, vector, matrix = worker()

    assert int(number) == 7
    np.testing.assert_array_equal(vector, [1, 2, 3, 4])
    np.testing.assert_array_equal(matrix, np.full([2, 3], 1.5))
    operations = worker.get_concrete_function().graph.get_operations()
    assert [each.type for each in operations].count("RemoteCall") == 1
    assert "ReadVariableOp" not in {each.type for each in operations}


def test_a_parcel_is_unpacked_before_its_worker_goes_on():
    variable = keras.Variable([0.0, 0.0])
    shelf = Shelf(SERVER)
    number = shelf.put([variable.value.handle])

    def unpack(value):
        (handle,) = shelf.get(number)
        return [tf.raw_ops.AssignVariableOp(resource=handle, value=value)]

    @tf.function
    def worker():
        with tf.control_dependencies(
            server_calls.deliver(SERVER, Parcel((tf.constant([1.0, 2.0]),), unpack))
        ):
            return variable.value.read_value()

    np.testing.assert_array_equal(worker(), [1, 2])
    assert server_calls.deliver(SERVER, Parcel()) == []


def test_what_is_on_a_shelf_is_there_no_longer_than_the_shelf():
    variable = keras.Variable([0.0, 0.0])
    shelf = Shelf(SERVER)
    shelf.put([variable.value.handle])
    look = {"dtypes": [tf.resource], "shared_name": shelf.name}
    assert int(tf.raw_ops.MapSize(**look)) == 1

    del shelf
    gc.collect()
    assert int(tf.raw_ops.MapSize(**look)) == 0
