"""Accumulation: the weights of batches that are k times larger."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest

from kerasdist.callbacks import GradientAccumulation, GradientClipping, MovingAverage
from kerasdist.parity import models
from tests import strategies
from tests.callbacks import hand_loop
from tests.cases import exhaustive, named
from tests.strategies import each_kind_of_strategy, each_strategy

pytestmark = pytest.mark.thorough


def groups(size, **arguments):
    return hand_loop.in_groups(hand_loop.global_batches(**arguments), size)


@each_strategy
def test_weights_are_those_of_larger_batches(strategy):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [GradientAccumulation(steps=3)])

    # Groups of 48, 48, 37, 48 examples, and one that is not full.
    hand_loop.assert_same(model, hand_loop.train(batches=groups(3)).weights)
    assert model.optimizer.iterations.numpy() == 4


@each_kind_of_strategy
def test_one_batch_with_all_the_examples_of_the_group_gives_the_same(strategy):
    ours, theirs = hand_loop.make_model(strategy), hand_loop.make_model(strategy)
    hand_loop.fit(ours, [GradientAccumulation(steps=7)])
    hand_loop.fit(theirs, batch_size=101)

    hand_loop.assert_same(ours, theirs.get_weights())


@each_kind_of_strategy
def test_a_group_that_is_not_full_goes_on_in_the_next_fit_with_this_callback(strategy):
    model = hand_loop.make_model(strategy)
    accumulation = GradientAccumulation(steps=3)
    hand_loop.fit(model, [accumulation], epochs=1)
    hand_loop.fit(model, epochs=0)
    hand_loop.fit(model, [accumulation], epochs=2)

    hand_loop.assert_same(model, hand_loop.train(batches=groups(3, epochs=3)).weights)
    assert model.optimizer.iterations.numpy() == 7


@pytest.mark.exhaustive
def test_another_callback_starts_with_an_empty_group():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=3)], epochs=1)
    hand_loop.fit(model, [GradientAccumulation(steps=3)], epochs=1)

    truth = hand_loop.train(batches=groups(3, epochs=1) * 2)
    hand_loop.assert_same(model, truth.weights)


@each_kind_of_strategy
def test_schedules_count_updates(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5, staircase=True)
    model = hand_loop.make_model(strategy, lambda: keras.optimizers.SGD(schedule, momentum=0.9))
    hand_loop.fit(model, [GradientAccumulation(steps=3)])

    update = hand_loop.sgd(lambda step: 0.2 * 0.5 ** (step // 2))
    hand_loop.assert_same(model, hand_loop.train(batches=groups(3), update=update).weights)


@pytest.mark.parametrize("average_comes_first", [True, *exhaustive(False)])
@each_kind_of_strategy
def test_averages_count_updates(strategy, average_comes_first):
    model = hand_loop.make_model(strategy)
    average = MovingAverage(0.5)
    callbacks = [GradientAccumulation(steps=3), average]
    hand_loop.fit(model, callbacks[::-1] if average_comes_first else callbacks)

    truth = hand_loop.average(hand_loop.train(batches=groups(3)).trajectory, 0.5)
    hand_loop.assert_same(average.get_state().values(), truth)


@each_kind_of_strategy
def test_what_comes_before_acts_on_every_batch_and_what_comes_after_on_the_group(strategy):
    before, after = hand_loop.make_model(strategy), hand_loop.make_model(strategy)
    clipping, accumulation = GradientClipping(norm=0.1), GradientAccumulation(steps=7)
    hand_loop.fit(before, [clipping, accumulation], epochs=1)
    hand_loop.fit(after, [accumulation, clipping], epochs=1)

    recorded = []
    hand_loop.train(lambda g, step: recorded.append(g) or hand_loop.multiply(g, [0] * 4))
    sizes = np.array([16] * 6 + [5]) / 101
    each_clipped = [hand_loop.clip_norm(gradients, 0.1) for gradients in recorded[:7]]
    means = [np.tensordot(sizes, parts, 1) for parts in zip(*each_clipped, strict=True)]
    together = [np.tensordot(sizes, parts, 1) for parts in zip(*recorded[:7], strict=True)]
    for model, mean in ((before, means), (after, hand_loop.clip_norm(together, 0.1))):
        hand_loop.assert_same(
            model, [w - 0.1 * g for w, g in zip(hand_loop.START, mean, strict=True)]
        )
    assert hand_loop.largest_difference(before.get_weights(), after.get_weights()) > 1e-3


def test_sparse_gradients_are_accumulated():
    model = hand_loop.make_words_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=3)], data=hand_loop.words())

    truth = hand_loop.train(
        batches=groups(3, data=hand_loop.words()),
        loss=hand_loop.cross_entropy,
        start=hand_loop.WORDS_START,
        update=hand_loop.adam(),
    )
    hand_loop.assert_same(model, truth.weights)


def train(strategy, callbacks=(), *, batch_size=16, sample_weight=None, **arguments):
    """Returns the model of `make_tagger(**arguments)`, trained for two epochs."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_tagger(**arguments)
    y = [LABELS] * len(model.outputs) if len(model.outputs) > 1 else LABELS
    fit = {"data": (WORDS, y), "batch_size": batch_size, "sample_weight": sample_weight}
    hand_loop.fit(model, callbacks, **fit)
    return model


def make_tagger(
    loss, *, rate=0.1, mask=False, heads=1, regularizer=None, make=keras.Model, **compile_arguments
):
    """Returns a compiled model, int [batch, 5 words] -> [batch, 5, 3 logits] for each head."""
    inputs = keras.Input((5,), dtype="int32")
    hidden = keras.layers.Embedding(20, 4, mask_zero=mask)(inputs)
    outputs = [keras.layers.Dense(3, kernel_regularizer=regularizer)(hidden) for _ in range(heads)]
    model = make(inputs, outputs if heads > 1 else outputs[0], name="tagger")
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, **compile_arguments)
    return model


def cross_entropy(reduction="sum_over_batch_size", **arguments):
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction, **arguments
    )


# The first batches have few words, the last ones many; 0 is masked where `mask` says so.
LENGTHS = np.linspace(1, 5.99, 101).astype(int)
WORDS = np.random.default_rng(2).integers(1, 20, size=(101, 5)) * (np.arange(5) < LENGTHS[:, None])
LABELS = np.random.default_rng(3).integers(0, 3, size=(101, 5))
WEIGHTED = {"sample_weight": np.linspace(0.1, 3, 101).astype("float32")[:, None]}
REGULARIZED = {"regularizer": keras.regularizers.L2(0.1)}
SUM = {"loss": cross_entropy("sum"), "rate": 1e-3}
MEAN = {"loss": cross_entropy()}
WEIGHTED_MEAN = {"loss": cross_entropy("mean_with_sample_weight")}
LOSSES = {
    "sum": SUM,
    "sum, mask, weights": SUM | WEIGHTED | {"mask": True},
    "none": {"loss": cross_entropy(None), "rate": 1e-3},
    "mean, mask": MEAN | REGULARIZED | {"mask": True},
    "mean, mask, weights": MEAN | WEIGHTED | {"mask": True},
    "mean, mask of the loss": {"loss": cross_entropy(ignore_class=0)},
    "mean, weights": MEAN | REGULARIZED | WEIGHTED,
    "weighted mean": WEIGHTED_MEAN | REGULARIZED,
    "weighted mean, weights": WEIGHTED_MEAN | REGULARIZED | WEIGHTED,
    "weighted mean, mask": WEIGHTED_MEAN | {"mask": True},
    "weighted mean, mask, weights": WEIGHTED_MEAN | WEIGHTED | {"mask": True},
    "two sums": SUM | {"heads": 2},
    "two means": MEAN | REGULARIZED | {"heads": 2},
    "two means with one mask": MEAN | {"heads": 2, "mask": True},
}
# Each part of them is in another one, too.
COMBINED = {
    "sum",
    "none",
    "two sums",
    "mean, mask",
    "mean, mask, weights",
    "mean, weights",
    "weighted mean",
    "weighted mean, weights",
    "weighted mean, mask",
    "two means",
}


def check_larger_batches(strategy, *, tolerance=1e-5, **arguments):
    ours = train(strategy, [GradientAccumulation(steps=7)], **arguments)
    truth = train(strategies.get("one device"), batch_size=101, **arguments)

    # A group has six batches of 16 examples, and one of 5.
    hand_loop.assert_same(ours, truth.get_weights(), tolerance)


@pytest.mark.parametrize("arguments", named(LOSSES, exhaustive=COMBINED))
@each_kind_of_strategy
def test_every_batch_counts_with_the_divisor_of_its_loss(strategy, arguments):
    check_larger_batches(strategy, **arguments)


@pytest.mark.parametrize(
    "arguments", [{"steps_per_execution": 3}, *exhaustive({"run_eagerly": True})], ids=str
)
@each_kind_of_strategy
def test_the_divisor_is_known_under_every_way_to_train(strategy, arguments):
    check_larger_batches(strategy, **LOSSES["mean, mask"], **arguments)


def test_the_divisor_is_known_under_xla():
    check_larger_batches(strategies.get("one device"), **LOSSES["mean, mask"], jit_compile=True)


def test_the_divisor_is_known_where_the_loss_is_scaled():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        check_larger_batches(strategies.get("2 replicas"), **LOSSES["mean, mask"], tolerance=5e-3)
    finally:
        keras.config.set_dtype_policy("float32")


class AveragesItself(keras.Model):
    """A model whose loss is a mean that Keras does not know of; a scalar stays what it is."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(super().compute_loss(x, y, y_pred, sample_weight, training))


def test_a_loss_of_the_users_own_counts_with_the_examples():
    strategy = strategies.get("one device")
    check_larger_batches(strategy, loss=cross_entropy(None), make=AveragesItself)


@pytest.mark.parametrize(
    ("arguments", "divisors"),
    [
        (
            {"loss": [cross_entropy("sum"), cross_entropy()]},
            r"1 \(a sum\), the number of examples",
        ),
        *exhaustive(
            (
                {"loss": [cross_entropy(), cross_entropy(ignore_class=0)]},
                "the number of examples, the sum of its mask or weights",
            )
        ),
        (
            {"loss": [cross_entropy(), cross_entropy(ignore_class=0)], "mask": True},
            "the sum of its mask or weights, the sum of its mask or weights",
        ),
    ],
    ids=["sum and mean", "mean and mask", "two masks"],
)
@each_kind_of_strategy
def test_different_divisors_are_told_once_and_batches_count_with_their_examples(
    strategy, arguments, divisors
):
    train_two = functools.partial(train, strategy, heads=2, **arguments)
    with pytest.warns(UserWarning, match=f"'tagger' .* numbers: {divisors}.*Give all") as warnings:
        ours = train_two([GradientAccumulation(steps=7)])
    truth = train_two([GradientAccumulation(steps=7)], make=AveragesItself)

    assert [each.category for each in warnings].count(UserWarning) == 1
    hand_loop.assert_same(ours, truth.get_weights())


@each_kind_of_strategy
def test_regularizers_beside_a_sum_are_told_once_with_the_way_out(strategy):
    with pytest.warns(UserWarning, match=r"'tagger' .* 7 times.*factors by 7") as warnings:
        ours = train(strategy, [GradientAccumulation(steps=7)], **SUM | REGULARIZED)
    divided = {"regularizer": keras.regularizers.L2(0.7)}
    truth = train(strategies.get("one device"), batch_size=101, **SUM | divided)

    hand_loop.assert_same(ours, truth.get_weights())
    assert [each.category for each in warnings].count(UserWarning) == 1


def test_a_group_that_is_all_masked_changes_nothing():
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model = make_tagger(cross_entropy(), mask=True)
    before = model.get_weights()
    hand_loop.fit(model, [GradientAccumulation(steps=7)], data=(0 * WORDS, LABELS))

    hand_loop.assert_same(model, before, tolerance=0)


def test_every_optimizer_of_a_train_step_updates_its_variables():
    strategy = strategies.get("one device")
    ours, theirs = (hand_loop.make(strategy, models.with_two_optimizers) for _ in range(2))
    hand_loop.fit(ours, [GradientAccumulation(steps=7)])
    hand_loop.fit(theirs, batch_size=101)

    hand_loop.assert_same(ours, theirs.get_weights())


def test_a_layer_that_is_trained_only_in_the_second_fit():
    strategy = strategies.get("2 replicas")
    model = hand_loop.make_model(strategy)
    accumulation = GradientAccumulation(steps=7)
    model.get_layer("hidden").trainable = False
    hand_loop.fit(model, [accumulation], epochs=1)
    model.get_layer("hidden").trainable = True
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")
    hand_loop.fit(model, [accumulation], epochs=1)

    assert np.abs(model.get_weights()[0] - hand_loop.START[0]).max() > 1e-3


def test_no_other_variable_can_have_the_id_of_one_that_sums_are_for():
    strategy = strategies.get("one device")
    model = hand_loop.make_model(strategy)
    accumulation = GradientAccumulation(steps=7)
    hand_loop.fit(model, [accumulation], epochs=1)
    [kernel, *_] = [weakref.ref(variable) for variable in model.trainable_variables]
    accumulation.set_model(hand_loop.make_model(strategy))
    del model
    gc.collect()

    assert kernel() is not None


@pytest.mark.parametrize("dtype", [None, "mixed_float16"])
def test_keras_own_accumulation_is_not_added(dtype):
    model = hand_loop.make_model(
        strategies.get("2 replicas"),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=5),
        dtype=dtype,
        auto_scale_loss=True,
    )

    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=5\. Use one of the two"):
        hand_loop.fit(model, [GradientAccumulation(steps=3)])


@pytest.mark.parametrize(
    ("steps", "error"),
    [(1, ValueError), (0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError)],
)
def test_anything_but_two_or_more_batches_is_refused_with_its_value(steps, error):
    with pytest.raises(error, match=f"steps={steps}"):
        GradientAccumulation(steps=steps)
