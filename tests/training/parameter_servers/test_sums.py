"""Which variables a traced step only adds to."""

import keras
import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers.sums import no_sums


def add(x, one, other):
    one.assign(one + x)


def add_twice(x, one, other):
    one.assign_add(x)
    other.assign(tf.cast(tf.identity(x + one - 2.0), tf.float32) * 0.0)
    one.assign_sub(x)


def add_many(x, one, other):
    one.assign(tf.add_n([x, one, 2.0 * x]) - x)
    other.assign_add(x)


def keep_largest(x, one, other):
    one.assign(tf.maximum(one, x))
    other.assign_add(x)


def keep_last(x, one, other):
    one.assign(x)


def double(x, one, other):
    one.assign(one + one)


def vary(x, one, other):
    """The mean needs only itself; the other one needs the mean."""
    one.assign_add(x)
    other.assign_add(tf.square(x - one))


def add_in_a_function(x, one, other):
    tf.function(lambda y: [one.assign_add(y), other.assign_add(y * 2.0)])(x)


def keep_largest_in_a_function(x, one, other):
    tf.function(lambda y: one.assign(tf.maximum(one, y)))(x)


def vary_in_a_function(x, one, other):
    tf.function(lambda y: other.assign_add(y - one))(x)


def decide(x, one, other):
    tf.cond(x > 0, lambda: one.assign_add(x), lambda: one.read_value())


def decide_by_the_other(x, one, other):
    tf.cond(other > 0, lambda: x, lambda: -x)
    one.assign_add(x)


def subtract_itself(x, one, other):
    one.assign(x - one)


CASES = {
    add: "",
    add_twice: "one other",
    add_many: "",
    keep_largest: "one",
    keep_last: "one",
    double: "one",
    vary: "one",
    add_in_a_function: "",
    keep_largest_in_a_function: "one",
    vary_in_a_function: "one",
    decide: "one",
    decide_by_the_other: "",
    subtract_itself: "one",
}


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("is_in_loop", [False, True], ids=["", "in a loop"])
def test_others_are_found(change, is_in_loop):
    one, other, unused = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)
    found = []

    def step(x):
        change(x, one, other)
        found[:] = no_sums([one, other, unused])

    @tf.function(autograph=False)
    def call(x):
        if is_in_loop:
            tf.while_loop(lambda count: count < 3, lambda count: [step(x), count + 1][1:], [0])
        else:
            step(x)

    call(tf.constant(1.0))

    names = {id(one): "one", id(other): "other", id(unused): "unused"}
    assert " ".join(names[id(each)] for each in found) == CASES[change]


def test_keras_metrics_are_sums():
    mean = keras.metrics.Mean()
    metrics: list = [
        keras.metrics.AUC(num_thresholds=5),
        keras.metrics.MeanIoU(num_classes=2),
        keras.metrics.F1Score(threshold=0.5),
        keras.metrics.R2Score(),
    ]
    found = []

    @tf.function(autograph=False)
    def step(x):
        mean.update_state(x)
        for metric in metrics:
            metric.update_state(tf.round(x), x)
        variables = [each.value for metric in (mean, *metrics) for each in metric.variables]
        found.append([each.name for each in no_sums(variables)])

    step(tf.constant([[0.0], [1.0], [0.6]]))

    assert found[-1] == []  # The first trace makes variables.
