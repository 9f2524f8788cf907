"""Counts of a call, added to those of the parameter servers at its end; here all in one process."""

import keras
import numpy as np
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


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.largest = self.add_weight(initializer=keras.initializers.Constant(-1e9))
        self.count = self.add_weight(initializer="zeros")

    def update_state(self, values):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(values)))
        self.count.assign(self.count + 1)


def test_what_is_no_sum_stays_where_it_is():
    metric = Largest()
    counts = LocalCounts(metric.variables, tf.Variable(0, dtype=tf.int64), unsure_metrics=[metric])
    values_of_servers = [each.value for each in metric.variables]
    traces = []

    @tf.function
    def call(values):
        with counts.collected():
            metric.update_state(values)
            pairs = zip(metric.variables, values_of_servers, strict=True)
            are_local = [each.value is not value for each, value in pairs]
            traces.append((counts.has_found_others(), are_local))

    call.get_concrete_function(tf.constant([0.0, 0.0]))  # As one that is thrown away.
    for values in ([0.1], [0.7], [0.3]):
        call(tf.constant(values))

    assert traces == [(True, [True, True]), (False, [False, True])]
    assert [float(each) for each in metric.variables] == [np.float32(0.7), 3.0]


def test_a_metric_with_which_a_step_computes_stays_where_it_is():
    metric = keras.metrics.Mean()
    counts = LocalCounts(metric.variables, tf.Variable(0, dtype=tf.int64))
    found = []

    def call():
        with counts.collected():
            metric.update_state([1.0])
            found.append(counts.has_found_others([metric]))

    for _ in range(2):
        tf.function(call).get_concrete_function()

    assert found == [True, False]
