"""Optimizers inside optimizers update as they do in plain Keras: each its own variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks
from kerasdist.private import keras_optimizers
from tests import event_files, plain, strategies
from tests.plain import check_as_plain, check_workers
from tests.strategies import each_cluster, each_strategy, on_three_replicas

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.15 has the first"
    ),
]

X = np.random.default_rng(0).normal(size=(49, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def divided(of_head, of_base, **arguments):
    by_layer = keras.optimizers.OptimizerMap(of_head, {".*base.*": of_base})
    return keras.optimizers.MultiOptimizer(by_layer, **arguments)


def of_two():
    return divided(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.9))


def with_settings():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    of_base = keras.optimizers.SGD(rate, global_clipnorm=0.5)
    average = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
    return divided(keras.optimizers.AdamW(0.01, clipnorm=0.1, weight_decay=0.1, **average), of_base)


def accumulating():
    return divided(
        keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    )


def scaled():
    return keras.optimizers.LossScaleOptimizer(of_two(), initial_scale=64.0, dynamic_growth_steps=2)


def with_a_scale():
    return divided(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05), loss_scale_factor=8.0)


class Centered(keras.optimizers.SGD):
    """Changes the gradients of the whole batch."""

    def apply(self, grads, trainable_variables=None):
        limited = [grad / (1.0 + tf.norm(grad)) for grad in grads]
        super().apply(limited, trainable_variables)


def with_an_own_one():
    return divided(keras.optimizers.Adam(0.01), Centered(0.1))


def by_a_function():
    held = {"base": keras.optimizers.SGD(0.1), "head": keras.optimizers.RMSprop(0.01)}
    return keras.optimizers.MultiOptimizer(lambda variable: held[variable.path.split("/")[-2]])


OPTIMIZERS = [of_two, with_settings, scaled, with_a_scale, with_an_own_one, by_a_function]


def make(optimizer):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="base"), keras.layers.Dense(1, name="head")]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, epochs=2, **kwargs) -> dict:
    history = model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, shuffle=False, **kwargs)
    counts = [float(each.iterations) for each in keras_optimizers.nested(model.optimizer)]
    return {**history.history, "counts": counts}


@each_strategy
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, accumulating])
def test_they_train_as_in_plain_keras(strategy, optimizer):
    check_as_plain(strategy, lambda: make(optimizer()), fit)


def outcomes(strategy) -> list:
    return [
        plain.outcome_of(strategy.scope(), lambda each=each: make(each()), fit)
        for each in OPTIMIZERS
    ]


@each_cluster
def test_they_train_so_over_workers_and_parameter_servers(workers):
    check_workers(workers, outcomes)


def two_alike():
    return divided(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))


def clipped(strategy) -> list:
    """Returns the weights and their averages after training with a limit for all gradients."""
    is_plain = not hasattr(strategy, "reason")
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.01) if is_plain else two_alike()
    given = [callbacks.GradientClipping(global_norm=0.01), callbacks.StopOnNonFinite()]
    average = callbacks.MovingAverage(0.9)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make(optimizer)
    fit(model, callbacks=[] if is_plain else [*given, average])
    return model.get_weights()


@each_strategy
def test_callbacks_get_the_gradients_of_all_of_them_at_once(strategy):
    plain.check_numbers(clipped(strategy), clipped(tf.distribute.get_strategy()))


@each_cluster
def test_callbacks_get_them_so_over_workers_and_parameter_servers(workers):
    check_workers(workers, clipped)


def averaged(optimizer, strategy) -> tuple:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make(optimizer)
    given = [
        callbacks.GradientMultipliers({".*/base/.*": 3.0}),
        callbacks.GradientAccumulation(steps=2),
        average := callbacks.MovingAverage(0.9),
    ]
    fit(model, callbacks=given)
    with average.applied(model):
        return model.get_weights()


@on_three_replicas
def test_multipliers_accumulation_and_averages_act_as_on_one_optimizer(strategy):
    ours = averaged(two_alike(), strategy)

    plain.check_numbers(ours, averaged(keras.optimizers.SGD(0.1), strategies.get("one device")))


def test_accumulation_inside_is_refused_beside_that_of_the_callback():
    with strategies.get("one device").scope():
        model = make(accumulating())

    with pytest.raises(ValueError, match="accumulates gradients already: gradient_accumulation_s"):
        fit(model, callbacks=[callbacks.GradientAccumulation(steps=2)])


@on_three_replicas
def test_a_training_goes_on_with_all_of_them(strategy, tmp_path):
    class Lost(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 10:
                raise KeyError("lost")

    truth = plain.outcome_of(strategy.scope(), lambda: make(scaled()), fit)
    keras.utils.set_random_seed(11)
    with strategy.scope():
        first, second = make(scaled()), make(scaled())
    second.set_weights([weight + 1.0 for weight in second.get_weights()])
    with pytest.raises(KeyError):
        fit(first, callbacks=[callbacks.Checkpoint(tmp_path, every_steps=4), Lost()])

    found = fit(second, callbacks=[callbacks.Checkpoint(tmp_path, every_steps=4)])

    plain.check_numbers(found["counts"], truth[0]["counts"])
    plain.check_numbers(second.get_weights(), truth[1])


def test_rates_are_shown_by_the_names_of_the_optimizers(tmp_path):
    with strategies.get("one device").scope():
        model = make(
            divided(keras.optimizers.Adam(0.5, name="a"), keras.optimizers.SGD(0.25, name="b"))
        )
    fit(model, epochs=1, callbacks=[callbacks.Summaries(tmp_path, every_steps=7)])

    found = event_files.numbers(tmp_path / "train")
    assert (found["learning_rate_a"], found["learning_rate_b"]) == ({7: 0.5}, {7: 0.25})
    assert "learning_rate" not in found
    plan = str(kerasdist.plan_training(model))
    assert "MultiOptimizer of SGD, learning rate 0.25; Adam, learning rate 0.5" in plan
    rates = keras_optimizers.learning_rates_of(model)
    assert sorted(float(rate) for rate in rates) == [0.25, 0.5]


def test_averages_of_an_optimizer_inside_begin_with_weights_that_are_loaded(tmp_path):
    source = make("sgd")
    source.save_weights(tmp_path / "source.weights.h5")
    with strategies.get("one device").scope():
        model = make(with_settings())
    fit(model, epochs=1)

    kerasdist.warm_start(model, tmp_path / "source.weights.h5")

    head = next(each for each in model.optimizer.optimizers if each.use_ema)
    average = next(each for each in head.variables if "average" in each.path)
    np.testing.assert_array_equal(average, source.get_layer("head").kernel)
