"""The parts of a batch that workers prepare alone are, one after the other, that of one device.

That a training with them is that of one device is in tests/cluster.
"""

import gc
import itertools
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.private import keras_fit
from kerasdist.training.data import data_checks, own_rows
from kerasdist.training.data.batches import part_of_worker
from tests import strategies


def worker(index, num_workers=2):
    addresses = [f"host:{1 + each}" for each in range(num_workers)]
    return strategies.spanning(Cluster(jobs={"worker": addresses}, task=Task("worker", index)))


def part_of(dataset, index, num_workers=2):
    part, _ = own_rows.of_worker(dataset, worker(index, num_workers))
    assert part is not None
    return part


def numbers(count=23):
    x = np.arange(count, dtype="float32")
    return tf.data.Dataset.from_tensor_slices((x, {"y": np.stack([x, -x], axis=1)}))


def halve(x, y):
    return x / 2, y


def add_noise(x, y):
    seed = tf.cast(tf.stack([x, 1]), tf.int32)
    return x + tf.random.stateless_normal([], seed), y


def joined(x, y):
    return tf.concat([x[tf.newaxis], y["y"]], axis=0)


PIPELINES = {
    "shuffled": lambda data: data.shuffle(9).map(halve).batch(6).prefetch(2),
    "in parallel": lambda data: data.shuffle(9).map(halve, num_parallel_calls=4).batch(6),
    "of two maps": lambda data: data.map(halve).prefetch(3).map(joined).batch(5),
    "of seeded numbers": lambda data: data.shuffle(30).map(add_noise).batch(4),
    "without a remainder": lambda data: data.map(halve).batch(6, drop_remainder=True),
    "repeated before": lambda data: data.shuffle(9).map(halve).repeat(3).batch(6),
    "repeated after": lambda data: data.shuffle(9).map(halve).batch(6).repeat(3),
    "taken": lambda data: data.map(halve).take(11).map(joined).skip(2).batch(4),
    "taken after": lambda data: data.map(halve).batch(4).skip(1).take(3),
    "cached before": lambda data: data.cache().shuffle(9).map(halve).batch(4).repeat(2),
    "cached after": lambda data: data.shuffle(9).map(halve).cache().batch(4).repeat(2),
    "filtered": lambda data: data.filter(lambda x, y: x % 3 > 0).map(halve).batch(4),
    "with options": lambda data: data.map(halve).with_options(tf.data.Options()).batch(4),
    "shuffled twice": lambda data: data.map(halve).shuffle(9).map(joined).batch(4),
    "of batches, again": lambda data: data.batch(3).map(halve).unbatch().map(joined).batch(4),
    "in any order": lambda data: data.map(halve, 4, deterministic=False).batch(6),
}


def by_numbers(x, y):
    return tf.cast(x, tf.float64) * 2, {"y": tf.reduce_sum(tf.maximum(y["y"], 1), axis=-1)}


def noted(x, y):
    tf.debugging.assert_less(x, 100.0)
    return x, y


def named(x, y):
    return {"x": x, "weight": tf.cast(x > 3, tf.float16), "y": y["y"]}


def doubled(each):
    return {**each, "x": 2 * each["x"]}


def labelled(x, y):
    return y["y"], tf.one_hot(tf.cast(x, tf.int32) % 3, 3)


def weighed(data):
    weigh = keras_fit.class_weight_function({0: 1.0, 2: 3.0})
    return data.map(labelled).batch(5).map(weigh).prefetch(-1)


PIPELINES |= {
    "weighed by class": weighed,
    "of dicts": lambda data: data.shuffle(9).map(named).map(doubled).batch(6),
    "batched in parallel": lambda data: data.map(halve).batch(6, num_parallel_calls=2),
    "with an assertion": lambda data: data.map(noted).batch(6),
    "of zipped data": lambda data: tf.data.Dataset.zip(data, data).map(lambda a, b: a).batch(4),
    "in batches": lambda data: data.shuffle(9).map(halve).batch(6).map(by_numbers).prefetch(1),
    "in batches alone": lambda data: data.shuffle(9).batch(6).map(by_numbers, num_parallel_calls=2),
}


def made(pipeline, count=23):
    tf.random.set_seed(7)
    return PIPELINES[pipeline](numbers(count))


def flat(batch):
    return np.concatenate([np.reshape(leaf, [len(leaf), -1]) for leaf in tf.nest.flatten(batch)], 1)


def joined_parts(parts, num_workers):
    """Returns the rows of all workers' parts of a batch, without those that are borrowed."""
    rows = []
    for index, part in enumerate(parts):
        _, count = part_of_worker(int(part.total[0]), num_workers, index)
        assert len(part.total) == max(count, 1)
        rows.append(flat(part.rows)[:count])
    return np.concatenate(rows)


@pytest.mark.parametrize("num_workers", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_parts_of_workers_are_the_batches_of_one_device(pipeline, num_workers):
    truth = made(pipeline)
    parts = [part_of(made(pipeline), index, num_workers) for index in range(num_workers)]

    for _ in range(2):  # Shuffles go on in the second epoch.
        epochs = [list(data.as_numpy_iterator()) for data in (truth, *parts)]
        for batch, *of_workers in zip(*epochs, strict=True):
            np.testing.assert_array_equal(joined_parts(of_workers, num_workers), flat(batch))


def test_a_last_batch_smaller_than_the_workers_is_lent_to_the_others():
    parts = [part_of(made("shuffled", 7), index, 3) for index in range(3)]

    last = [list(part.as_numpy_iterator())[-1] for part in parts]

    assert [int(part.total[0]) for part in last] == [1, 1, 1]
    assert len({float(part.rows[0][0]) for part in last}) == 1


@pytest.mark.parametrize("total", range(12))
@pytest.mark.parametrize("num_workers", range(1, 6))
def test_parts_follow_each_other_and_no_smaller_batch_has_a_larger_one(total, num_workers):
    parts = [part_of_worker(total, num_workers, index) for index in range(num_workers)]

    starts = [0, *itertools.accumulate(count for _, count in parts)]
    assert [start for start, _ in parts] == starts[:-1] and starts[-1] == total
    assert np.ptp([count for _, count in parts]) <= 1
    for index, (_, count) in enumerate(parts):
        assert count <= part_of_worker(total + 1, num_workers, index)[1]
        in_graph = part_of_worker(tf.constant(total, tf.int64), num_workers, index)
        assert [int(each) for each in in_graph] == list(parts[index])


def test_a_worker_prepares_its_own_rows_alone(tmp_path):
    def note(x, y):
        tf.print(x, output_stream=f"file://{path}")
        return x, y

    noted = []
    for index in range(2):
        path = str(tmp_path / str(index))
        list(part_of(numbers().shuffle(9, seed=1).map(note).batch(6), index))
        noted.append((tmp_path / str(index)).read_text().split())

    assert sorted(map(float, noted[0] + noted[1])) == list(range(23))
    assert [len(each) for each in noted] == [12, 11]


def test_the_first_batches_of_workers_are_compared_before_they_are_prepared():
    def digests(order, index):
        data = tf.data.Dataset.from_tensor_slices(np.array(order)).map(lambda x: x * 2).batch(4)
        return [float(data_checks.digest(batch)) for batch in part_of(data, index)]

    (first, *others), (second, *of_second) = (
        digests([1, 2, 3, 4, 5], 0),
        digests([1, 2, 3, 4, 5], 1),
    )
    assert first == second and others == of_second
    assert others != digests([1, 2, 3, 5, 4], 1)[1:]  # Where an epoch begins in the midst of data.
    assert len({first, digests([2, 1, 3, 4, 5], 1)[0], digests([1, 2, 3, 5, 4], 1)[0]}) == 3


def test_another_fit_goes_on_with_the_same_shuffle_and_the_same_cache():
    dataset = made("cached after")

    parts = [part_of(dataset, 0) for _ in range(2)]

    assert parts[0] is parts[1]
    assert part_of(dataset, 1) is not parts[0]


ENDLESS = {
    "repeated before": lambda data: data.shuffle(9).map(halve).repeat().batch(6),
    "repeated after": lambda data: (
        data.shuffle(9).map(halve).batch(6, drop_remainder=True).repeat().prefetch(2)
    ),
    "of dicts": lambda data: data.map(named).batch(4, drop_remainder=True).repeat().skip(1),
    "in batches alone": lambda data: data.repeat().batch(6).map(by_numbers),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_batches_of_which_a_worker_prepares_no_other_are_every_second_one(name):
    def make():
        tf.random.set_seed(7)
        return ENDLESS[name](numbers())

    for index in range(2):
        truth = make().shard(2, index).take(9)
        own = own_rows.batches_of_worker(make(), 2, index)
        assert own is not None and own.element_spec == truth.element_spec
        for batch, expected in zip(own.take(9), truth, strict=True):
            np.testing.assert_array_equal(flat(batch), flat(expected))


def test_batches_that_are_cached_or_not_full_are_prepared_by_all():
    mapped = numbers().map(halve)

    for dataset in (mapped.cache().repeat().batch(4), mapped.batch(4).repeat()):
        assert own_rows.batches_of_worker(dataset, 2, 0) is None


def drawn(x, y):
    return x + tf.random.uniform([]), y


def python(x, y):
    return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), []), y


def counting():
    variable = tf.Variable(0.0)
    return lambda x, y: (x + variable.assign_add(1), y)


def of_unknown_shape(x, y):
    return tf.zeros([tf.cast(x, tf.int32) * 0 + 2]), y


NOT_CUT = {
    "`map` draws random numbers in the order of its calls": lambda data: data.map(drawn).batch(4),
    "`map` calls Python": lambda data: data.map(python).batch(4),
    "`map` has a state: AssignAddVariableOp": lambda data: data.map(counting()).batch(4),
    "`shuffle` after `map`": lambda data: data.map(halve).shuffle(5).batch(4),
    "`filter` after `map`": lambda data: data.map(halve).filter(lambda x, y: x > 2).batch(4),
    "`repeat` after `cache`": lambda data: data.map(halve).cache().repeat(2).batch(4),
    "`map` after `batch`": lambda data: data.map(halve).batch(4).map(lambda x, y: (x[::-1], y)),
    "`zip` after `map`": lambda data: tf.data.Dataset.zip(data.map(halve), data).batch(4),
    "`map` within `interleave`": lambda data: data.interleave(
        lambda x, y: tf.data.Dataset.from_tensors((x, y)).map(halve)
    ).batch(4),
    "`group_by_window`": lambda data: data.map(halve).group_by_window(
        lambda x, y: 0, lambda key, window: window.batch(4), window_size=4
    ),
    "`map` after `batch`, of full batches": lambda data: (
        data.map(halve).batch(4, drop_remainder=True).map(by_numbers)
    ),
    "`padded_batch`": lambda data: data.map(halve).padded_batch(4),
    "`cache(filename)`": lambda data: data.map(halve).cache("file").batch(4),
    "`shuffle` after `batch`": lambda data: data.map(halve).batch(4).shuffle(3),
    "batches of 1 are too small for 2 workers to share": lambda data: data.map(halve).batch(1),
    "its batches hold more than numbers": lambda data: data.map(
        lambda x, y: (tf.strings.as_string(x), y)
    ).batch(4),
    "the shapes of its examples are not known": lambda data: data.map(of_unknown_shape).batch(4),
    "its examples hold more than dense tensors": lambda data: data.map(
        lambda x, y: (tf.sparse.from_dense([x]), y)
    ).batch(4),
}


@pytest.mark.parametrize("reason", NOT_CUT)
def test_what_cannot_be_cut_says_why(reason):
    expected = reason.partition(",")[0]
    assert own_rows.of_worker(NOT_CUT[reason](numbers()), worker(0)) == (None, expected)


def test_a_map_before_what_is_cut_is_named():
    for earlier, reason in {
        "shuffled twice": "`shuffle` after `map`",
        "of batches, again": "`unbatch` after `map`",
        "shuffled": None,
    }.items():
        part, found = own_rows.of_worker(made(earlier), worker(0))

        assert part is not None
        assert found == reason


def test_a_part_keeps_no_dataset_alive():
    datasets = [made(name) for name in ("cached after", "in batches", "weighed by class")]
    references = list(map(weakref.ref, datasets))
    for dataset in datasets:
        part_of(dataset, 0)

    del dataset, datasets
    gc.collect()

    assert [reference() for reference in references] == [None] * 3


def test_what_prepares_nothing_is_left_as_it_is():
    for dataset in (numbers().shuffle(5).batch(4), numbers(), numbers().map(halve)):
        assert own_rows.of_worker(dataset, worker(0)) == (None, None)


def test_images_of_a_folder_are_decoded_by_one_worker_each(tmp_path):
    for index in range(6):
        (tmp_path / "ab"[index % 2]).mkdir(exist_ok=True)
        pixels = np.full([4, 4, 3], 40 * index)
        keras.utils.save_img(tmp_path / "ab"[index % 2] / f"{index}.png", pixels, scale=False)

    def read():
        return keras.utils.image_dataset_from_directory(
            tmp_path, batch_size=4, image_size=(2, 2), seed=3, verbose=False
        )

    parts = [part_of(read(), index) for index in range(2)]
    for batch, *of_workers in zip(*(list(data) for data in (read(), *parts)), strict=True):
        np.testing.assert_array_equal(joined_parts(of_workers, 2), flat(batch))
