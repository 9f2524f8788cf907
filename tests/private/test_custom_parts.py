"""What is Keras' own is told from what is the user's."""

import functools
import inspect

import keras
import pytest

from kerasdist.private import custom_parts


def test_keras_scales_the_loss_between_forward_and_backward_pass():
    source = inspect.getsource(keras.Model.train_step)

    assert source.count("scale_loss(") == 1
    assert source.index("scale_loss(") < source.index("tape.gradient(")


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", True),
        ({"a": keras.losses.MeanSquaredError(), "b": "mae"}, True),
        (lambda y_true, y_pred: y_pred - y_true, False),
    ],
)
def test_losses_of_the_users_own_are_told_from_keras(loss, expected):
    model = keras.Sequential([])
    model.compile("sgd", loss)

    assert custom_parts.has_original_losses(model) == expected


class HasComputeLoss(keras.Model):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


class HasTrainStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_a_total_loss_of_the_users_own_is_told_from_keras():
    assert custom_parts.has_original_total_loss(keras.Sequential([]))
    assert not custom_parts.has_original_total_loss(HasComputeLoss())
    assert not custom_parts.has_original_total_loss(HasTrainStep())


def test_a_step_that_the_model_was_given_is_told_from_keras():
    model = keras.Sequential([])
    assert custom_parts.is_original_step(model.train_step)

    model.train_step = lambda data: {}

    assert not custom_parts.is_original_step(model.train_step)
    assert not custom_parts.has_original_total_loss(model)
    assert not custom_parts.returns_original_metrics(model, "train_step")


def test_metrics_are_found_that_the_property_leaves_out():
    class Unlisted(keras.Model):
        metrics = property(lambda self: [])

        def __init__(self):
            super().__init__()
            self.tracker = keras.metrics.Mean(name="tracker")

    names = [metric.name for metric in custom_parts.metrics_of(Unlisted())]

    assert "tracker" in names


class HasCall(keras.Model):
    def call(self, inputs):
        return inputs


def test_a_model_of_which_the_loss_alone_is_the_users_is_told():
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(3)(inputs)

    assert custom_parts.is_loss_all_custom(HasComputeLoss(inputs, outputs))
    assert not custom_parts.is_loss_all_custom(HasTrainStep(inputs, outputs))
    assert not custom_parts.is_loss_all_custom(HasCall())
    assert not custom_parts.is_loss_all_custom(keras.Sequential([HasCall()]))


def test_metrics_of_the_users_own_are_found_before_they_are_built():
    def error(y, predictions):
        return keras.ops.max(y - predictions)

    class Own(keras.metrics.Mean):
        """A mean."""

    own = Own(), Own()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert custom_parts.custom_metrics_of(model) == []
    model.compile("sgd", "mse", metrics=["mae", [own[0]]], weighted_metrics=[own[1]])
    assert custom_parts.custom_metrics_of(model) == list(own)

    wrapper = keras.metrics.MeanMetricWrapper
    adds_up = [
        custom_parts.adds_up(wrapper(function))
        for function in (keras.metrics.mean_squared_error, error, keras.losses.Dice())
    ]
    assert adds_up == [True, False, False]


class Halves(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        super().apply_gradients([(gradient / 2, variable) for gradient, variable in grads_and_vars])


def test_what_mixes_examples_is_told_by_the_axes():
    losses = keras.losses
    over_pixels = keras.metrics.MeanMetricWrapper(losses.dice, axis=(1, 2))
    mixing = (
        losses.Dice(),
        losses.Tversky(axis=(0, 1)),
        losses.Dice(axis=-2),
        losses.CosineSimilarity(axis=0),
        losses.CategoricalCrossentropy(axis=0),
        losses.CategoricalFocalCrossentropy(axis=0),
        keras.metrics.CosineSimilarity(axis=0),
        keras.metrics.CategoricalCrossentropy(axis=0),
        losses.Circle(),
        keras.metrics.MeanMetricWrapper(losses.dice),
    )
    others = (
        *(losses.Dice(axis=(1, 2)), losses.CosineSimilarity(), losses.Huber(), over_pixels),
        *(losses.CategoricalCrossentropy(), losses.SparseCategoricalCrossentropy()),
    )

    assert all(custom_parts.mixes_examples(each, rank=2) for each in mixing)
    assert not any(custom_parts.mixes_examples(each, rank=3) for each in others)
    assert not custom_parts.adds_up(mixing[-1])
    assert custom_parts.adds_up(over_pixels)


def test_losses_of_the_users_own_have_names():
    def own(y, predictions):
        return y - predictions

    class Own(keras.losses.Loss):
        """A loss."""

    model = keras.Sequential([])
    assert custom_parts.custom_loss_names(model) == []
    assert custom_parts.compiled_losses_of(model) is None
    model.compile("sgd", ["mse", own, Own(name="mine"), keras.losses.Dice(), own])
    assert custom_parts.custom_loss_names(model) == ["own", "mine"]
    assert custom_parts.is_custom_loss(keras.losses.get(own))
    assert not custom_parts.is_custom_loss(keras.losses.get("dice"))
    assert custom_parts.compiled_losses_of(model) is not None


def test_ways_of_ones_own_to_apply_gradients_are_found():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert custom_parts.custom_applies_of(model) == []
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    assert custom_parts.custom_applies_of(model) == []
    assert not custom_parts.has_custom_parts(model)
    inner = model.optimizer.inner_optimizer
    inner.apply = functools.partial(inner.apply)
    assert custom_parts.custom_applies_of(model) == [(inner, "apply")]
    model.compile(Halves())
    assert custom_parts.custom_applies_of(model) == [(model.optimizer, "apply_gradients")]
    assert custom_parts.has_custom_parts(model)


def test_what_compares_examples_is_told_by_name_too():
    comparing = ["dice", keras.losses.circle, keras.losses.Tversky(), "Circle"]
    others = ["mse", keras.losses.categorical_crossentropy, keras.losses.Dice(axis=(1, 2)), None]

    assert all(map(custom_parts.compares_examples, comparing))
    assert not any(map(custom_parts.compares_examples, others))
