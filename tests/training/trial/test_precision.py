"""A net that computes in 16 bits is rehearsed in 32, and computes in 16 afterwards."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from kerasdist.training.trial import precision


def make_model(policy="mixed_bfloat16"):
    hidden = layers.Dense(2, dtype=policy)
    return keras.Sequential([keras.Input((3,)), hidden, layers.Dense(1, dtype="float32")])


def dtypes_of(model):
    return [layer.compute_dtype for layer in model.layers]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_rehearsal_computes_in_32_bits(policy):
    model = make_model(policy)

    seen = precision.rehearsed(model, lambda: [*dtypes_of(model), model(tf.zeros([1, 3])).dtype])

    assert seen == ["float32", "float32", tf.float32]
    assert dtypes_of(model) == [policy.removeprefix("mixed_"), "float32"]


def test_a_program_that_asks_for_the_16_bits_is_rehearsed_with_them():
    model = make_model()

    def rehearse():
        outputs = model.layers[0](tf.zeros([1, 3]))
        return (outputs * tf.ones([1, 2], tf.bfloat16)).dtype

    assert precision.rehearsed(model, rehearse) == tf.bfloat16
    assert dtypes_of(model) == ["bfloat16", "float32"]


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_any_other_net_is_rehearsed_once(policy):
    model, calls = make_model(policy), []

    def rehearse():
        calls.append(dtypes_of(model)[0])
        raise KeyError

    with pytest.raises(KeyError):
        precision.rehearsed(model, rehearse)

    assert calls == [policy]
