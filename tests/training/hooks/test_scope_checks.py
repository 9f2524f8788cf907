"""What is created outside the scope is taken in, or named before the first step."""

import contextlib
import dataclasses
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks import scope_checks
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import (
    each_kind_of_strategy,
    each_strategy,
    on_two_replicas,
    on_workers_and_more,
)
from tests.warned import warned_by

pytestmark = pytest.mark.thorough

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
DATA = np.random.default_rng(0).normal(3, 2, (16, 3)).astype("float32")
METHODS = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
}


def make_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def make_adam(weights):
    optimizer = keras.optimizers.Adam()
    optimizer.build(weights)
    return optimizer


@pytest.mark.parametrize(
    "make_optimizer", [lambda weights: "adam", make_adam], ids=["by name", "built"]
)
@each_kind_of_strategy
def test_a_model_from_outside_the_scope_is_one_error_in_it(strategy, make_optimizer):
    model = make_model()
    optimizer = make_optimizer(model.trainable_variables)

    with strategy.scope(), pytest.raises(RuntimeError, match=r"' was .* outside .* is compiled in"):
        model.compile(optimizer, "mse")
    model.compile(optimizer, "mse")
    for method in ("fit", "train_on_batch"):
        with strategy.scope(), pytest.raises(RuntimeError, match=r"' was .* outside .* is trained"):
            METHODS[method](model)


@pytest.mark.parametrize("num_to_aggregate", [None, 2])
def test_a_loop_of_ones_own_is_told_that_it_is_not_synchronous_over_parameter_servers(
    num_to_aggregate, monkeypatch
):
    strategy = strategies.get("one device")
    remote = types.SimpleNamespace(num_to_aggregate=num_to_aggregate)
    monkeypatch.setattr(
        strategy, "deployment", dataclasses.replace(strategy.deployment, remote=remote)
    )
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
        told = warned_by(lambda: scope_checks.check_loop_scope(optimizer, []))

    assert [each[:44] for each in told] == (
        ["A training loop of your own is asynchronous:"] if num_to_aggregate else []
    )


@on_two_replicas
def test_a_model_from_outside_is_read_in_the_scope_as_outside(strategy):
    model = make_model()
    model.compile("sgd", "mse")

    with strategy.scope():
        outputs, losses = model.predict(X, verbose=0), model.evaluate(X, Y, verbose=0)

    assert outputs.tolist() == model.predict(X, verbose=0).tolist()
    assert losses == model.evaluate(X, Y, verbose=0)


@on_two_replicas
def test_a_model_from_outside_is_not_trained_beside_the_one_that_has_its_weights(strategy):
    base = make_model()
    base.compile("sgd", "mse")
    base.fit(X, Y, verbose=0)
    with strategy.scope():
        model = keras.Sequential([base, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)

    with pytest.raises(RuntimeError, match="and another one, created inside, trains its weight"):
        base.fit(X, Y, verbose=0)


@on_two_replicas
def test_a_model_from_outside_with_an_optimizer_from_inside(strategy):
    model = make_model()
    with strategy.scope():
        optimizer = keras.optimizers.Adam(name="ours")

    with pytest.raises(RuntimeError, match=r"created outside .* its optimizer 'ours' inside"):
        model.compile(optimizer, "mse")


@pytest.mark.parametrize(
    "make_optimizer",
    [
        *exhaustive(lambda: "adam", lambda: keras.optimizers.Adam(0.1)),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.5)),
    ],
    ids=["by name", "Adam", "LossScaleOptimizer"],
)
@each_strategy
def test_compile_outside_the_scope_trains_as_inside(strategy, make_optimizer):
    def train(scope):
        keras.utils.set_random_seed(1)
        optimizer = make_optimizer()
        with scope:
            model = make_model()
        model.compile(optimizer, "mse", metrics=["mae"])
        losses = model.evaluate(X, Y, verbose=0)
        return losses, model.fit(X, Y, epochs=3, verbose=0).history["loss"]

    losses, history = train(strategy.scope())
    expected_losses, expected_history = train(contextlib.nullcontext())

    np.testing.assert_allclose(losses, expected_losses, atol=1e-5)
    np.testing.assert_allclose(history, expected_history, atol=1e-5)


def test_an_optimizer_from_another_strategys_scope():
    with strategies.get("one device").scope():
        optimizer = keras.optimizers.SGD()
    with strategies.get("2 replicas").scope():
        model = make_model()
        model.compile(optimizer, "mse")

    with pytest.raises(RuntimeError, match=r"Optimizer .* in the scope of another"):
        model.fit(X, Y, verbose=0)


def read_from_outside(scope):
    """Trains behind layers that were adapted or are frozen, with a metric; all from outside."""
    keras.utils.set_random_seed(1)
    normalize = keras.layers.Normalization()
    normalize.adapt(DATA)
    base = keras.Sequential([keras.Input((3,)), normalize, keras.layers.Dense(4)])
    base.add(keras.layers.BatchNormalization())
    base.add(keras.layers.GaussianNoise(1e-9))  # Which counts what it has drawn.
    base.trainable = False
    before = base.predict(DATA, verbose=0)
    metric = keras.metrics.MeanAbsoluteError()
    with scope:
        model = keras.Sequential([base, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[metric])
    history = model.fit(DATA, DATA[:, :1], shuffle=False, batch_size=5, verbose=0).history
    losses = model.evaluate(DATA, DATA[:, :1], verbose=0), float(metric.result())
    return history, losses, model.predict(DATA, verbose=0), before, base.predict(DATA, verbose=0)


@each_strategy
def test_what_nobody_trains_may_be_from_outside(strategy):
    check_like_plain(read_from_outside, strategy)


@on_workers_and_more
def test_on_workers_too_what_nobody_trains_may_be_from_outside(workers):
    for found in strategies.run_on_workers(functools.partial(in_scope, read_from_outside), workers):
        assert_close(found, read_from_outside(contextlib.nullcontext()))


@on_two_replicas
def test_a_model_reads_what_is_from_outside(strategy):
    base = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    with strategy.scope():
        model = keras.Sequential([base, keras.layers.Rescaling(2.0)])

    np.testing.assert_allclose(model.predict(DATA, verbose=0), 2 * base(DATA), atol=1e-5)


@on_two_replicas
def test_a_model_that_shares_statistics_reads_those_of_all_replicas(strategy):
    base = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.5)])
    before = base.predict(DATA, verbose=0)
    with strategy.scope():
        model = keras.Sequential([base, keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    with pytest.warns(UserWarning, match="uses the statistics of each of 2 replicas"):
        model.fit(DATA, DATA[:, :1], verbose=0)
    model.predict(DATA, verbose=0)

    np.testing.assert_allclose(base.predict(DATA, verbose=0), base(DATA), atol=1e-5)
    assert not np.allclose(before, base(DATA))


def make_late(scope):
    """Makes all variables after the scope."""
    keras.utils.set_random_seed(1)
    with scope:
        normalize, dense = keras.layers.Normalization(), keras.layers.Dense(4, "tanh")
        model = keras.Sequential([normalize, dense, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Nadam(0.01, global_clipnorm=0.1)
        model.compile(optimizer, "mse", metrics=[keras.metrics.R2Score()])
    normalize.adapt(DATA)
    model.build((None, 3))
    dense.enable_lora(2)
    optimizer.build(model.trainable_variables)
    history = model.fit(DATA, DATA[:, :1], shuffle=False, batch_size=5, epochs=2, verbose=0).history
    return history, model.predict(DATA, verbose=0)


@each_strategy
def test_what_is_made_in_the_scope_belongs_to_it_whenever_its_variables_come(strategy):
    check_like_plain(make_late, strategy)


@on_workers_and_more
def test_on_workers_too_what_is_made_in_the_scope_belongs_to_it(workers):
    for found in strategies.run_on_workers(functools.partial(in_scope, make_late), workers):
        assert_close(found, make_late(contextlib.nullcontext()))


def in_scope(run, strategy):
    return run(strategy.scope())


def check_like_plain(run, strategy):
    assert_close(run(strategy.scope()), run(contextlib.nullcontext()))


def assert_close(found, truth):
    pairs = zip(keras.tree.flatten(found), keras.tree.flatten(truth), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("method", [*METHODS, "predict", "predict_on_batch"])
@on_two_replicas
def test_layers_from_another_strategys_scope(strategy, method):
    other = strategies.get("one device")
    with other.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 3))
    with strategy.scope():
        model = keras.Sequential([layer])
        model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match=r"'dense.*/kernel' .* in the scope of another"):
        METHODS.get(method, lambda model: getattr(model, method)(X))(model)


def run_loop(scope):
    """Trains as loops for one device do, with the loop inside the scope."""
    keras.utils.set_random_seed(1)
    with scope:
        model, optimizer = make_model(), keras.optimizers.Adam(0.1)

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(X, training=True) - Y))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            return loss

        losses = [float(run()) for run in (step, tf.function(step), tf.function(step))]
    return losses, int(optimizer.iterations), model.get_weights()


def test_a_loop_for_one_device_runs_in_the_scope_of_one():
    outcome = run_loop(strategies.get("one device").scope())

    assert repr(outcome) == repr(run_loop(contextlib.nullcontext()))


@on_two_replicas
def test_a_loop_for_one_device_is_one_error_in_the_scope_of_several(strategy):
    number = strategy.num_replicas_in_sync

    with pytest.raises(RuntimeError, match=rf"`tape.gradient` is called in .* {number} rep"):
        run_loop(strategy.scope())


@on_two_replicas
def test_gradients_applied_outside_of_the_replicas_are_one_error(strategy):
    with strategy.scope():
        optimizer, weight = keras.optimizers.SGD(0.1), keras.Variable([1.0])

        with pytest.raises(RuntimeError, match=r"`optimizer.apply` is called .*`train_step`"):
            optimizer.apply([tf.constant([1.0])], [weight])


IN_SCOPE, OUTSIDE = "in the scope", "outside"
OPTIMIZER_LEFT = r"Optimizer 'sgd' was created inside `strategy.scope\(\)`, and is applied outside"


@pytest.mark.parametrize(
    ("deployment", "weight_is", "optimizer_is", "message"),
    [
        ("2 replicas", OUTSIDE, IN_SCOPE, OPTIMIZER_LEFT + ".* Create the model inside the same"),
        ("2 replicas", IN_SCOPE, IN_SCOPE, OPTIMIZER_LEFT + " of it. Make the step a `train_step`"),
        ("one device", IN_SCOPE, IN_SCOPE, OPTIMIZER_LEFT + " of it. .* put the loop inside `with"),
        ("2 replicas", IN_SCOPE, OUTSIDE, "Weight 'w' was .* updated outside of it. Make the step"),
    ],
)
def test_a_loop_outside_of_the_scope_is_told_where_it_belongs(
    deployment, weight_is, optimizer_is, message
):
    def make(where, function):
        with strategies.get(deployment).scope() if where == IN_SCOPE else contextlib.nullcontext():
            return function()

    weight = make(weight_is, lambda: keras.Variable([1.0], name="w"))
    optimizer = make(optimizer_is, lambda: keras.optimizers.SGD(0.1, name="sgd"))

    with pytest.raises(RuntimeError, match=message):
        optimizer.apply([tf.constant([1.0])], [weight])
    with pytest.raises(RuntimeError, match=message):
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])


@on_two_replicas
def test_a_callback_is_told_that_it_runs_outside_of_the_scope(strategy):
    def update(*_):
        weights = model.trainable_variables
        model.optimizer.apply([tf.zeros_like(each) for each in weights], weights)

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=update)
        with pytest.raises(RuntimeError, match=r"outside of it. Callbacks run outside .* Make the"):
            model.fit(np.ones((4, 1)), np.ones((4, 1)), callbacks=[begin], verbose=0)


def test_so_is_one_that_updates_variables_of_tensorflow():
    with strategies.get("2 replicas").scope():
        weight = tf.Variable([1.0], name="w")

    with pytest.raises(RuntimeError, match=r"Weight 'w:0' was .* updated outside of it"):
        keras.optimizers.SGD(0.1).apply([tf.constant([1.0])], [weight])


def test_an_optimizer_from_outside_trains_weights_of_one_device_as_any():
    def train(scope):
        with scope:
            model = make_model()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(X) - Y))
            weights = model.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), iter(weights))
        return [weight.tolist() for weight in model.get_weights()]

    keras.utils.set_random_seed(1)
    trained = train(strategies.get("one device").scope())

    keras.utils.set_random_seed(1)
    assert trained == train(contextlib.nullcontext())


def train_and_change(scope, change):
    """Trains a model, has `change` make another one of it outside the scope, and trains that."""
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    changed = change(model) or model
    changed.compile("adam", "mse")
    history = changed.fit(X, Y, epochs=2, verbose=0).history["loss"]
    return history, changed.predict(X, verbose=0).tolist()


def add_layer(model):
    model.pop()
    model.add(keras.layers.Dense(3))


CHANGES = {
    "enable_lora": lambda model: model.layers[0].enable_lora(2),
    "add": add_layer,
    "quantize": lambda model: model.layers[0].quantize("int8"),
    "a new head": lambda model: keras.Sequential([model, keras.layers.Dense(1)]),
}


@pytest.mark.parametrize("change", CHANGES)
@each_strategy
def test_what_is_made_outside_after_training_trains_as_on_one_device(strategy, change):
    check_like_plain(lambda scope: train_and_change(scope, CHANGES[change]), strategy)


@each_strategy
def test_a_model_from_outside_shares_its_weights_with_one_around_it(strategy):
    """As when a base is looked at first, and then fine-tuned in the scope."""

    def outputs(scope):
        keras.utils.set_random_seed(1)
        base = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        before = base.predict(X, verbose=0)
        with scope:
            model = keras.Sequential([base, keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(X, X[:, :1], shuffle=False, verbose=0)
        return before, base.predict(X, verbose=0)

    found, truth = map(outputs, (strategy.scope(), contextlib.nullcontext()))

    np.testing.assert_allclose(found, truth, atol=1e-5)
    assert not np.allclose(*found)


def train_inner(scope):
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    inner = keras.Model(model.inputs, model.layers[0].output)
    inner.compile(keras.optimizers.Adam(0.1), "mse")
    return inner, inner.fit(X, Y, epochs=2, verbose=0).history["loss"]


@each_strategy
def test_a_model_of_trained_layers_belongs_to_their_scope(strategy):
    model, history = train_inner(strategy.scope())

    assert model.distribute_strategy is strategy
    np.testing.assert_allclose(history, train_inner(contextlib.nullcontext())[1], atol=1e-5)
