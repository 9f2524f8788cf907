"""What a worker notes of its reading; that the chief hears it is for the tests of faults."""

import tensorflow as tf

from kerasdist.cluster import Task
from kerasdist.private import variable_adapter
from kerasdist.training.parameter_servers.worker_times import DataWaits


def test_a_batch_is_on_its_way_while_it_is_read():
    waits = DataWaits()

    def noted():
        return variable_adapter.worker_numbers(waits._name, 2)

    @tf.function(autograph=False)
    def call():
        with waits.noted():
            first = waits.of_input(lambda: (noted(), tf.RaggedTensor.from_row_lengths([1.0], [1])))
            second = waits.of_input(noted)
            return first[0], second

    for _ in range(2):  # Each call begins anew.
        assert [numbers.numpy().tolist() for numbers in call()] == [[1, 0], [2, 1]]


def test_a_worker_that_is_not_there_says_nothing():
    assert DataWaits().is_waiting(Task("worker", 7)) is None
