"""Data that may come in any order comes in one order, which several workers then share."""

import pytest
import tensorflow as tf

from kerasdist.training.data import element_order
from kerasdist.training.parameter_servers import data_source


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(24)


def slowly(number):
    """Returns a number, some of them after a while."""
    size = tf.where(number % 7 == 0, 200_000, 1)
    zero = tf.reduce_sum(tf.random.stateless_uniform([size], [1, 2])) * 0.0
    return number + tf.cast(zero, tf.int64)


def with_option(dataset, is_in_order):
    options = tf.data.Options()
    options.deterministic = is_in_order
    return dataset.with_options(options)


def mapped(is_in_order, function=slowly):
    return numbers().map(function, num_parallel_calls=8, deterministic=is_in_order)


def interleaved(make, is_in_order=None):
    number = None if is_in_order is None else 4
    return (
        numbers().take(4).interleave(make, 4, num_parallel_calls=number, deterministic=is_in_order)
    )


# Each with the order of one device, or any.
DATASETS = {
    "map": mapped,
    "shuffle": lambda is_in_order: mapped(is_in_order).shuffle(5, seed=1),
    "batch": lambda is_in_order: (
        numbers().map(slowly).batch(3, num_parallel_calls=4, deterministic=is_in_order)
    ),
    "options": lambda is_in_order: with_option(numbers().map(slowly, 8), is_in_order).batch(3),
    "interleave": lambda is_in_order: interleaved(lambda _: numbers().map(slowly), is_in_order),
    "inside": lambda is_in_order: interleaved(lambda _: mapped(is_in_order)),
    "python": lambda is_in_order: mapped(
        is_in_order, lambda number: tf.numpy_function(int, [number], tf.int64)
    ),
}


def two_passes(dataset) -> list:
    return [[each.tolist() for each in dataset.as_numpy_iterator()] for _ in range(2)]


@pytest.mark.parametrize("name", DATASETS)
def test_the_order_is_that_of_one_device(name):
    expected = two_passes(DATASETS[name](True))
    dataset = DATASETS[name](False)

    assert two_passes(element_order.in_order(dataset)) == expected
    if name != "python":  # The chief reads it.
        copy = data_source._copier(DATASETS[name](False))
        assert copy is not None
        assert two_passes(element_order.with_order_option(copy())) == expected


def test_other_data_stays_as_it_is():
    for dataset in (numbers(), mapped(True), mapped(None), interleaved(lambda _: numbers(), True)):
        assert element_order.in_order(dataset) is dataset


def test_what_cannot_be_changed_is_an_error():
    variable = tf.Variable(1, dtype=tf.int64)

    with pytest.raises(ValueError, match=r"`shuffle_files` a `shuffle_seed`"):
        element_order.in_order(mapped(False, lambda number: number * variable))
