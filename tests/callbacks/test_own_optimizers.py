"""Programs that keep optimizers of their own in a dict, as published ones do."""

import contextlib
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from kerasdist.private import keras_optimizers
from tests import event_files, strategies
from tests.plain import check_as_plain
from tests.strategies import each_kind_of_strategy, each_strategy, each_with_parameter_servers

pytestmark = pytest.mark.thorough

X = np.random.default_rng(2).normal(size=(96, 6)).astype("float32")


class Critics(keras.Model):
    """Two networks, of which the critic may make several updates for each batch."""

    def __init__(self, critic_steps):
        super().__init__()
        self.critic, self.maker = (keras.layers.Dense(6, name=name) for name in ("critic", "maker"))
        self.turns = [("critic", self.critic)] * critic_steps + [("maker", self.maker)]

    def compile(self, **optimizers):
        super().compile()  # With an optimizer that nobody uses.
        self.optimizers = optimizers

    def call(self, x):
        return self.critic(self.maker(x))

    def train_step(self, data):
        for name, network in self.turns:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data, training=True) - 1.0))
            gradients = tape.gradient(loss, network.trainable_variables)
            self.optimizers[name].apply(gradients, network.trainable_variables)
        return {"loss": loss}


def make(strategy, **arguments):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        return make_here(**arguments)


def make_here(*, optimizer=keras.optimizers.SGD, rate=0.1, critic_steps=1):
    model = Critics(critic_steps)
    model(X[:1])
    model.compile(critic=optimizer(rate), maker=optimizer(rate))
    return model


def fit(model, given=(), *, epochs=2, batch_size=16):
    arguments = {"batch_size": batch_size, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(X, callbacks=list(given), **arguments)
    return model.get_weights()


def assert_same(ours, theirs, tolerance=1e-5):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@each_strategy
def test_they_train_as_in_plain_keras(strategy):
    def make_with_two_turns():
        return make_here(optimizer=keras.optimizers.Adam, rate=0.01, critic_steps=2)

    check_as_plain(strategy, make_with_two_turns, fit)


class Projected(keras.optimizers.SGD):
    """Keeps weights in a box, as those of the critic of a Wasserstein GAN."""

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        super().apply_gradients(pairs)
        _project([variable for _, variable in pairs])


class ProjectedInApply(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        _project(keras_optimizers.variables_trained_by(self))


def _project(variables):
    for variable in variables:
        variable.assign(tf.clip_by_value(variable, -0.3, 0.3))


class Lookahead(keras.optimizers.SGD):
    """Goes half of the way back every other update, at first to 0."""

    def build(self, variables):
        super().build(variables)
        self.slow = [self.add_variable_from_reference(each, "slow") for each in variables]

    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        tf.cond(self.iterations % 2 == 0, self._go_back, lambda: 0)

    def _go_back(self):
        for slow, variable in zip(
            self.slow, keras_optimizers.variables_trained_by(self), strict=True
        ):
            slow.assign_add(0.5 * (variable - slow))
            variable.assign(slow)
        return 0


def weights_after_own_updates(strategy=None) -> list:
    """Returns the weights that optimizers train which change them after Keras' update."""
    weights = []
    for optimizer in (Projected, ProjectedInApply, Lookahead):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile(optimizer(0.1), "mse")
        model.fit(X, X[:, :1], batch_size=16, shuffle=False, verbose=0)
        weights.extend(model.get_weights())
    return weights


@each_strategy
def test_what_they_do_after_the_update_is_done_to_what_it_has_made(strategy):
    assert_same(weights_after_own_updates(strategy), weights_after_own_updates())


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_what_they_do_after_the_update_is_done_on_the_parameter_server(workers):
    (weights,) = strategies.run_on_workers(weights_after_own_updates, workers)

    assert_same(weights, weights_after_own_updates())


@each_kind_of_strategy
def test_one_optimizer_may_update_each_network_by_itself(strategy, tmp_path):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Critics(1)
        model(X[:1])
        shared = keras.optimizers.SGD(0.1)
        shared.build(model.trainable_variables)
        model.compile(critic=shared, maker=shared)
    fit(model, [callbacks.Summaries(tmp_path, every_steps=6)])

    found = event_files.numbers(tmp_path / "train")
    for variable in model.trainable_variables:
        norms = found[f"gradient_norm/{variable.path}"]
        assert list(norms) == [6, 12, 18, 24]
        assert all(norm > 0 for norm in norms.values())


@each_kind_of_strategy
def test_summaries_count_the_first_one_s_updates_and_have_the_gradients_of_all(strategy, tmp_path):
    summaries = callbacks.Summaries(tmp_path, every_steps=6)
    model = make(strategy, critic_steps=2)
    ours = fit(model, [summaries, callbacks.StopOnNonFinite()])

    assert_same(ours, fit(make(strategy, critic_steps=2)), tolerance=0)
    found = event_files.numbers(tmp_path / "train")
    # Two for each of 12 batches.
    assert list(found["gradient_norm/global"]) == [6, 12, 18, 24]
    assert found["learning_rate"][6] == np.float32(0.1)
    for variable in model.trainable_variables:
        assert all(value > 0 for value in found[f"gradient_norm/{variable.path}"].values())
        assert all(value > 0 for value in found[f"update_ratio/{variable.path}"].values())


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_updates_of_others_are_those_of_the_optimizer_that_updates(workers):
    ((stale, steps),) = strategies.run_on_workers(staleness_of_chief, workers)

    # Nobody else makes any.
    assert set(stale.values()) == {0.0}
    assert min(steps) >= 3


def staleness_of_chief(strategy):
    with tempfile.TemporaryDirectory() as folder:
        fit(make(strategy), [callbacks.Summaries(folder, every_steps=3)])
        found = event_files.numbers(Path(folder) / "train")
        return found["staleness/max"], list(found["gradient_norm/global"])


@each_kind_of_strategy
def test_multipliers_see_the_updates_of_each(strategy):
    in_first_epoch = callbacks.GradientMultipliers(
        {".*": lambda step: tf.cast(step < 6, "float32")}
    )

    ours = fit(make(strategy), [in_first_epoch])
    assert_same(ours, fit(make(strategy), epochs=1))


@each_kind_of_strategy
def test_averages_move_with_the_updates_of_each(strategy):
    model, average = make(strategy), callbacks.MovingAverage(0.9)
    averages = model.get_weights()

    def move(batch, logs=None):
        decay = min(0.9, (2 + batch) / (11 + batch))
        for index, weight in enumerate(model.get_weights()):
            averages[index] = decay * averages[index] + (1 - decay) * weight

    fit(model, [average, keras.callbacks.LambdaCallback(on_train_batch_end=move)], epochs=1)
    with average.applied(model):
        assert_same(model.get_weights(), averages)


@each_kind_of_strategy
def test_gradients_of_each_are_accumulated(strategy):
    model = make(strategy)
    fit(model, [callbacks.GradientAccumulation(steps=2)])

    assert [int(each.iterations.numpy()) for each in model.optimizers.values()] == [6, 6]


@each_kind_of_strategy
@pytest.mark.parametrize(
    ("callback", "options"),
    [
        (lambda: callbacks.GradientClipping(norm=0.01), {"clipnorm": 0.01}),
        (lambda: callbacks.GradientClipping(value=0.01), {"clipvalue": 0.01}),
    ],
    ids=["norm", "value"],
)
def test_clipping_is_that_of_each(strategy, callback, options):
    def clipping(rate):
        return keras.optimizers.SGD(rate, **options)

    assert_same(fit(make(strategy), [callback()]), fit(make(strategy, optimizer=clipping)))


@each_kind_of_strategy
def test_a_program_that_goes_on_has_the_slots_of_all(strategy, tmp_path):
    adam, batches = keras.optimizers.Adam, []
    truth = fit(make(strategy, optimizer=adam))
    fit(make(strategy, optimizer=adam), [callbacks.Checkpoint(tmp_path)], epochs=1)

    model = make(strategy, optimizer=adam)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    assert_same(fit(model, [callbacks.Checkpoint(tmp_path), count]), truth, tolerance=0)
    assert len(batches) == 6
    assert [int(each.iterations.numpy()) for each in model.optimizers.values()] == [12, 12]


class Compiled(keras.Model):
    """A network whose layer is a compiled model, beside one that was trained before."""

    def __init__(self):
        super().__init__()
        self.before, self.network = (keras.Sequential([keras.layers.Dense(6)]) for _ in range(2))
        for each in (self.before, self.network):
            each.build((None, 6))
            each.compile("adam")
        self.before.optimizer.iterations.assign(1000)

    def call(self, x):
        return self.network(self.before(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data) - 1.0))
        weights = self.network.trainable_variables
        self.network.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_optimizers_of_layers_count_and_go_on(tmp_path):
    def run(folder, epochs):
        keras.utils.set_random_seed(1)
        with strategies.get("one device").scope():
            model = Compiled()
            model.compile()
        fit(model, [callbacks.Checkpoint(folder, every_steps=4)], epochs=epochs)
        return model.get_weights()

    truth = run(tmp_path / "whole", 2)
    run(tmp_path / "parts", 1)

    assert_same(run(tmp_path / "parts", 2), truth, tolerance=0)
    steps = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert steps == [f"step-{step:08d}" for step in (4, 6, 8, 12)]


def test_a_program_with_other_optimizers_does_not_go_on(tmp_path):
    strategy = strategies.get("one device")
    trained = make(strategy, optimizer=keras.optimizers.Adam)
    fit(trained, [callbacks.Checkpoint(tmp_path)], epochs=1)

    said = "optimizers Adam, Adam in the checkpoint, SGD, SGD now"
    with pytest.raises(callbacks.Checkpoint.MismatchError, match=said):
        fit(make(strategy), [callbacks.Checkpoint(tmp_path)])

    model = make(strategy, rate=0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Skipping variable loading")
        fit(model, [callbacks.Checkpoint(tmp_path, weights_if_changed=True)], epochs=1)
    assert_same(model.get_weights(), trained.get_weights(), tolerance=0)
