"""Which files a worker reads, and how it knows the size of its next batch.

That the epochs of several workers end together is in tests/cluster.
"""

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.data import file_shards
from tests import strategies

Policy = tf.data.experimental.AutoShardPolicy


@pytest.fixture
def files(tmp_path):
    for name, lines in {"a": "1\n2\n3\n", "b": "4\n5\n"}.items():
        (tmp_path / name).write_text(lines)
    return [str(tmp_path / name) for name in ("a", "b")]


def read(files, *, batch_size=2):
    return (
        tf.data.Dataset.from_tensor_slices(files)
        .interleave(tf.data.TextLineDataset)
        .batch(batch_size)
    )


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def worker(index, num_workers=2):
    addresses = [f"host:{1 + each}" for each in range(num_workers)]
    return strategies.spanning(Cluster(jobs={"worker": addresses}, task=Task("worker", index)))


def test_each_batch_comes_with_its_size_and_the_next_one():
    dataset = file_shards.with_next_size(tf.data.Dataset.range(1, 6).batch(2)).take(5)

    triples = [
        (batch.tolist(), int(size), int(next_size))
        for batch, size, next_size in dataset.as_numpy_iterator()
    ]

    # A batch of size 0 holds one example, which does not count.
    assert triples == [
        ([0], 0, 2),
        ([1, 2], 2, 2),
        ([3, 4], 2, 1),
        ([5], 1, 0),
        ([5], 0, 0),
    ]


@pytest.mark.parametrize(
    "structure", [lambda x: x, lambda x: (x,), lambda x: {"x": x}], ids=["alone", "tuple", "dict"]
)
def test_the_parts_of_a_batch_may_have_names(structure):
    spec = structure(tf.TensorSpec([None], tf.int32, name="ids"))
    dataset = tf.data.Dataset.from_generator(lambda: [structure([1, 2])], output_signature=spec)

    empty, batch, _ = file_shards.with_next_size(dataset).take(3).as_numpy_iterator()

    assert tf.nest.map_structure(list, (empty[0], batch[0])) == (structure([0]), structure([1, 2]))


def test_workers_read_different_files(files):
    parts = [file_shards.shard(read(files), worker(index))[0] for index in (0, 1)]

    seen = []
    for part in parts:
        assert part is not None
        batches = part.skip(1).take_while(lambda batch, size, next_size: size > 0)
        seen.append([line for batch, *_ in batches.as_numpy_iterator() for line in batch])
    assert seen == [[b"1", b"2", b"3"], [b"4", b"5"]]


WHOLE = {
    "2 files are too few for 3 workers to share": lambda data: data,
    "`take` needs all files": lambda data: data.take(1),
    "its auto_shard_policy is OFF": lambda data: with_policy(data, Policy.OFF),
    "its auto_shard_policy is DATA": lambda data: with_policy(data, Policy.DATA),
    "its batch size is not known": lambda data: data.unbatch().batch(2, num_parallel_calls=2),
    "batches of 1 are too small for 2 workers to share": lambda data: data.unbatch().batch(1),
    "its batches hold more than dense tensors": lambda data: data.map(tf.strings.split),
}


@pytest.mark.parametrize("reason", WHOLE)
def test_what_cannot_be_shared_is_read_by_all_workers_and_says_why(files, reason):
    dataset = WHOLE[reason](read(files))
    num_workers = 3 if "3 workers" in reason else 2

    assert file_shards.shard(dataset, worker(0, num_workers=num_workers)) == (None, reason)


OF_NO_FILES = {
    "paths of images": lambda files: files.map(tf.io.read_file),
    "paths of images with labels": lambda files: tf.data.Dataset.zip(files, files),
    "without a graph": lambda files: files.apply(tf.data.experimental.copy_to_device("/cpu:0")),
}


@pytest.mark.parametrize("name", OF_NO_FILES)
def test_texts_that_name_no_records_say_no_reason_and_nothing_of_tensorflow(files, capfd, name):
    dataset = OF_NO_FILES[name](tf.data.Dataset.from_tensor_slices(files)).batch(2)

    assert file_shards.shard(dataset, worker(0)) == (None, None)
    captured = capfd.readouterr()
    assert "op: " not in captured.out + captured.err
