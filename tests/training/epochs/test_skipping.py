"""A dataset without its first batches is the rest of it, and prepares none of what is left out."""

from typing import Any

import pytest
import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.epochs import skipping


def numbers():
    return tf.data.Dataset.range(46)


def prepare(number):
    return {"x": number * 3, "y": tf.cast(number, tf.float32)}


def of_file(number):
    return tf.data.Dataset.range(number * 10, number * 10 + 10)


GENERATOR = []  # Made by the test.


def draw(number):
    return number + GENERATOR[0].uniform([], maxval=9, dtype=tf.int64)


# What stands before the first element that is left out, if it is one, and the dataset.
SKIPPED = {
    "a shuffle and a map": ("shuffle", lambda: numbers().shuffle(20).map(prepare).batch(4)),
    "in parallel": (
        "shuffle",
        lambda: (
            numbers()
            .shuffle(46, seed=3)
            .map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(4, drop_remainder=True, num_parallel_calls=2)
            .prefetch(tf.data.AUTOTUNE)
        ),
    ),
    "a map and a shuffle": ("variant", lambda: numbers().map(prepare).shuffle(20).batch(4)),
    "one order": (
        "variant",
        lambda: numbers().map(prepare).shuffle(9, reshuffle_each_iteration=False).batch(4),
    ),
    "two maps": ("variant", lambda: numbers().map(abs).shuffle(20, seed=1).map(prepare).batch(4)),
    "shuffled batches": (
        "shuffle",
        lambda: numbers().map(prepare).batch(4).shuffle(5).map(lambda batch: batch),
    ),
    "files": (
        "shuffle",
        lambda: (
            tf.data.Dataset.range(5).shuffle(5).interleave(of_file).shuffle(7).map(prepare).batch(4)
        ),
    ),
    "filtered": (
        "filter",
        lambda: numbers().shuffle(9).filter(lambda number: number != 3).map(prepare).batch(4),
    ),
    "batches of batches": ("range", lambda: numbers().map(prepare).batch(2).batch(2)),
    "passes": (None, lambda: numbers().map(prepare).repeat(2).batch(4).take(20)),
    "numbered": (
        None,
        lambda: (
            tf.data.Dataset.zip(
                numbers().shuffle(9), tf.data.Dataset.random(5, rerandomize_each_iteration=True)
            )
            .skip(2)
            .map(lambda number, drawn: (number, drawn))
            .batch(4)
        ),
    ),
    "options": (
        "shuffle",
        lambda: numbers().shuffle(9).with_options(tf.data.Options()).map(prepare).batch(4),
    ),
}
# Of which an order is known only as far as the first iterator.
OF_FIRST = {
    "repeated": lambda: numbers().shuffle(20).repeat(2).map(prepare).batch(4),
    "random numbers": lambda: numbers().shuffle(9).map(draw).batch(4),
    "two inputs": lambda: numbers().shuffle(9).concatenate(numbers().shuffle(9)).batch(4),
}
# Several passes over data of known length, by their number.
PASSES = {
    "of batches": lambda n: numbers().map(prepare).shuffle(20).batch(4).repeat(n),
    "made one with a shuffle": lambda n: numbers().map(prepare).shuffle(20).repeat(n).batch(4),
    "of all in a buffer": lambda n: numbers().map(prepare).shuffle(99).repeat(n).batch(4),
    "of two shuffles": lambda n: numbers().shuffle(46).map(prepare).shuffle(9).repeat(n).batch(4),
    "without an end": lambda n: numbers().shuffle(9).repeat().map(prepare).batch(4).take(12 * n),
}
NOT_SKIPPED = {
    "a cache": lambda: numbers().map(prepare).cache().batch(4),
    "python": lambda: tf.data.Dataset.from_generator(
        lambda: iter(range(9)), output_signature=tf.TensorSpec([])
    ),
    "no dataset": lambda: [1, 2],
}


def seeded(make):
    tf.random.set_seed(7)
    GENERATOR[:] = [tf.random.Generator.from_seed(1)]
    return make()


def values(batches):
    return [tf.nest.map_structure(lambda part: part.numpy().tolist(), batch) for batch in batches]


def begun_after(make, num_batches, **kwargs):
    dataset = seeded(make)
    assert skipping.may_skip(dataset)
    return dataset, skipping.begun_after(dataset, num_batches, **kwargs)


@pytest.mark.parametrize("name", SKIPPED)
def test_the_rest_of_an_epoch_and_those_after_it_are_what_they_were(name):
    _, make = SKIPPED[name]
    dataset = seeded(make)
    epochs = [values(dataset) for _ in range(4)]

    dataset, iterator = begun_after(make, 3, num_made=2, num_read=2)

    assert values(iterator) == epochs[2][3:]
    assert values(dataset) == epochs[3]


@pytest.mark.parametrize("name", [each for each in SKIPPED if SKIPPED[each][0]])
def test_what_prepares_elements_comes_after_what_is_left_out(name):
    before, make = SKIPPED[name]

    rest = skipping.without_first(make(), 3, num_drawn=0)

    names = list(map(dataset_adapter.transformation_of, dataset_adapter.lineage_of(rest)))
    assert names[names.index("skip") + 1] == before
    assert "map" in names[: names.index("skip")]


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("num_batches", [3, 12, 23, 40])
def test_of_whole_passes_nothing_is_read(name, num_batches):
    expected = values(seeded(lambda: PASSES[name](5)))

    _, iterator = begun_after(lambda: PASSES[name](5), num_batches, num_made=0, num_read=0)

    assert values(iterator) == expected[num_batches:]


@pytest.mark.parametrize("name", OF_FIRST)
def test_orders_that_are_drawn_while_it_is_read_are_known_in_the_first_pass(name):
    expected = values(seeded(OF_FIRST[name]))

    _, iterator = begun_after(OF_FIRST[name], 3, num_made=0, num_read=0)
    _, later = begun_after(OF_FIRST[name], 3, num_made=1, num_read=1)

    assert values(iterator) == expected[3:]
    assert later is None


@pytest.mark.parametrize("name", NOT_SKIPPED)
def test_what_needs_all_that_comes_before_is_not_cut(name):
    dataset: Any = NOT_SKIPPED[name]()

    assert not skipping.may_skip(dataset)


def test_nobody_reads_what_is_at_its_end():
    _, make = SKIPPED["files"]
    dataset = seeded(make)
    epochs = [values(dataset) for _ in range(3)]

    dataset, _ = begun_after(make, len(epochs[1]), num_made=1, num_read=1, is_at_end=True)

    assert values(dataset) == epochs[2]


def test_no_pass_is_begun_over_data_that_draws_no_order(monkeypatch):
    data = tf.data.Dataset.from_tensors(7).repeat()
    monkeypatch.setattr(tf.data.Dataset, "__iter__", None)

    rest = skipping.without_first(data, 10**9, num_drawn=0)

    monkeypatch.undo()
    assert next(iter(rest)).numpy() == 7
