"""The examples of a trial: how many, touched by rounding, perturbed, and in which precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kerasdist.training.trial import examples
from kerasdist.training.trial.examples import OutputSizes
from tests import strategies


def test_inputs_of_all_kinds_are_touched_but_for_whole_numbers():
    ragged = tf.ragged.constant([[0.5, 1.0], [2.5]])
    sparse = tf.sparse.from_dense([[0.0, 0.5], [3.0, 0.0]])
    pixels = tf.range(64.0)
    x = {"ragged": ragged, "sparse": sparse, "pixels": pixels, "ids": tf.constant([1, 2])}

    moved, labels = examples.twin_of((x, tf.constant([0.5])))

    def are_moved(now, before):
        return (now != before).numpy().tolist()

    assert are_moved(moved["ragged"].flat_values, ragged.flat_values) == [True, False, True]
    assert are_moved(moved["sparse"].values, sparse.values) == [True, False]
    assert are_moved(moved["pixels"], pixels) == [False] + [True] * 63
    assert are_moved(moved["ids"], x["ids"]) == [False, False]
    assert labels.numpy().tolist() == [0.5]


@pytest.mark.parametrize(("size", "expected"), [(40, 11), (11, 11), (12, 11), (3, 3), (2, 2)])
def test_the_shares_of_the_replicas_are_not_equal(size, expected):
    x = np.zeros((size, 2))

    taken, weights = examples.of((tf.constant(x), None), "few", 3)

    assert taken.shape == (expected, 2)
    assert weights is None


def test_two_batches_in_one_are_taken_as_a_whole():
    batch = tf.zeros([40, 2]), tf.zeros([7, 2])

    assert examples.of(batch, "few", 3) is batch


def test_each_replica_moves_its_own_copies_and_each_number_by_itself():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    (kernel,) = model.trainable_variables
    kernel.assign(tf.ones([3, 2]))

    def step(replica):
        return tf.convert_to_tensor(kernel.value) if replica == 0 else None

    def replica_fn():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        if tf.get_static_value(replica) == 0:
            examples.perturbed_step(step, model, 1)(0)

    strategy.run(replica_fn)

    moved, unmoved = (each.numpy() for each in strategy.experimental_local_results(kernel.value))
    assert 1e-3 < np.abs(moved - 1).max() < 2.1e-3  # A thousandth along each of two axes.
    assert len(set(moved.ravel())) == 6
    assert unmoved.tolist() == np.ones((3, 2)).tolist()


def test_only_numbers_are_moved_and_other_seeds_move_them_otherwise():
    given = {"a": tf.ones([4]), "b": tf.constant([1, 2]), "c": tf.ones([])}

    first, second = (examples.perturbed(given, seed) for seed in (1, 2))

    assert first["b"].numpy().tolist() == [1, 2]
    assert (first["a"] != second["a"]).numpy().all()
    assert first["c"] != second["c"]


@pytest.mark.parametrize(("ratio", "expected"), [(1000, True), (2_000_000, False)])
def test_the_outputs_of_all_layers_and_calls_count(ratio, expected):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    sizes = OutputSizes()

    with sizes.counted(model):
        for _ in range(2):
            model(tf.zeros([3, 4]))
    model(tf.zeros([10**6, 4]))

    # 2 calls of 3 examples: 8 and 2 floats.
    assert sizes.allow(1) and sizes._num_bytes == 2 * 3 * (8 + 2) * 4
    assert sizes.allow(ratio) is expected


def make_model(policy="mixed_bfloat16"):
    hidden = layers.Dense(2, dtype=policy)
    return keras.Sequential([keras.Input((3,)), hidden, layers.Dense(1, dtype="float32")])


def dtypes_of(model):
    return [layer.compute_dtype for layer in model.layers]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_trial_computes_in_32_bits(policy):
    model = make_model(policy)

    seen = examples.in_float32_first(
        model, lambda: [*dtypes_of(model), model(tf.zeros([1, 3])).dtype]
    )

    assert seen == ["float32", "float32", tf.float32]
    assert dtypes_of(model) == [policy.removeprefix("mixed_"), "float32"]


def test_a_program_that_asks_for_the_16_bits_is_tried_with_them():
    model = make_model()

    def run():
        outputs = model.layers[0](tf.zeros([1, 3]))
        return (outputs * tf.ones([1, 2], tf.bfloat16)).dtype

    assert examples.in_float32_first(model, run) == tf.bfloat16
    assert dtypes_of(model) == ["bfloat16", "float32"]


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_any_other_net_is_tried_once(policy):
    model, calls = make_model(policy), []

    def run():
        calls.append(dtypes_of(model)[0])
        raise KeyError

    with pytest.raises(KeyError):
        examples.in_float32_first(model, run)

    assert calls == [policy]
