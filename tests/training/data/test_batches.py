"""Global batches are split exactly, and each example is read once."""

import pytest
import tensorflow as tf

from kerasdist.training.data import batches


@pytest.mark.parametrize(
    ("size", "num_replicas", "expected"),
    [(8, 2, [4, 4]), (5, 2, [3, 2]), (7, 4, [2, 2, 2, 1]), (0, 2, [0, 0])],
)
def test_shares_differ_by_one_example_at_most(size, num_replicas, expected):
    shares = batches.split(tf.range(size), num_replicas)

    assert [int(tf.size(share)) for share in shares] == expected
    assert batches.counts_of(size, num_replicas) == expected
    assert tf.concat(shares, axis=0).numpy().tolist() == list(range(size))


def test_a_replica_without_examples_gets_one_that_does_not_count():
    shares = batches.split(tf.range(2), 4)

    assert [share.numpy().tolist() for share in shares] == [[0], [1], [1], [1]]
    assert batches.counts_of(2, 4) == [1, 0, 1, 0]


def test_the_size_may_be_known_at_run_time_only():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def split(batch):
        return batches.split(batch, 2)

    assert [share.shape[0] for share in split(tf.range(5))] == [3, 2]
    assert [share.numpy().tolist() for share in split(tf.range(1))] == [[0], [0]]


def test_sparse_shares_keep_the_sizes_that_are_known():
    @tf.function(input_signature=[tf.SparseTensorSpec([None, 6], tf.float32)])
    def split(batch):
        shares = batches.split(batch, 2)
        assert [share.shape.as_list() for share in shares] == [[None, 6], [None, 6]]
        return shares

    assert [share.shape[0] for share in split(tf.sparse.from_dense(tf.eye(5, 6)))] == [3, 2]


def test_sparse_ragged_and_scalar_parts_are_split_along():
    batch = {
        "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]]),
        "ragged": tf.ragged.constant([[1], [2, 3], []]),
        "scalar": tf.constant(7),
        "none": None,
    }

    first, second = batches.split(batch, 2)

    assert tf.sparse.to_dense(first["sparse"]).numpy().tolist() == [[1, 0], [0, 2]]
    assert tf.sparse.to_dense(second["sparse"]).numpy().tolist() == [[3, 0]]
    assert first["ragged"].to_list() == [[1], [2, 3]]
    assert second["ragged"].to_list() == [[]]
    assert int(second["scalar"]) == 7
    assert second["none"] is None
