"""Counts of a call, added to those of the parameter servers at its end; here all in one process."""

import keras
import tensorflow as tf

from kerasdist.training.parameter_servers.local_counts import LocalCounts


def test_a_call_adds_what_it_has_counted_once_and_at_its_end():
    metric = keras.metrics.Mean()
    metric.update_state([10.0])
    num_examples = tf.Variable(5, dtype=tf.int64)
    counts = LocalCounts(metric.variables, num_examples)

    @tf.function
    def call():
        with counts.collected() as counter:
            for value in (1.0, 4.0):
                metric.update_state([value])
                counter.assign_add(2)
            return metric.result(), counter.read_value(), num_examples.read_value()

    for before in (5, 9):
        result, counted, total = call()

        assert (float(result), int(counted), int(total)) == (2.5, 4, before)
    assert int(num_examples.read_value()) == 13
    assert float(metric.result()) == (10 + 2 * (1 + 4)) / 5
