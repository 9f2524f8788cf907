"""Steps that are not finite: they leave nothing behind, and their cause is named."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import (
    GradientAccumulation,
    GradientClipping,
    LossAverages,
    MovingAverage,
    StopOnNonFinite,
)
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy, each_strategy, each_with_parameter_servers

pytestmark = pytest.mark.thorough

BAD_STEP = 4  # From 1, in the first epoch.


def data_with_nan():
    """Returns the examples, the last of the fourth batch with an input that is NaN."""
    x, y = examples()
    x = x.copy()
    x[16 * BAD_STEP - 1, 2] = np.nan
    return x, y


def good_batches(epochs=1):
    batches = hand_loop.global_batches(epochs=1)
    return (batches[: BAD_STEP - 1] + batches[BAD_STEP:]) * epochs


@each_strategy
def test_raise_names_the_step_and_the_weights_are_those_of_the_step_before(strategy):
    model = hand_loop.make_model(strategy, metrics=["mae"])
    callback = StopOnNonFinite(action="raise")

    with pytest.raises(FloatingPointError, match=r"^Step 4 is not finite.*the input contains NaN"):
        hand_loop.fit(model, [callback], data=data_with_nan())

    truth = hand_loop.train(batches=hand_loop.global_batches()[: BAD_STEP - 1])
    hand_loop.assert_same(model, truth.weights)
    assert int(model.optimizer.iterations.value) == BAD_STEP - 1
    assert callback.step == BAD_STEP
    assert np.isnan(callback.batch[0]).sum() == 1
    # The counts and sums of the metrics are finite as well.
    assert all(np.isfinite(np.asarray(each)).all() for each in model.metrics_variables)


@each_strategy
def test_stop_ends_fit(strategy):
    model = hand_loop.make_model(strategy)

    with pytest.warns(UserWarning, match="Step 4 is not finite.* Training stops"):
        history = hand_loop.fit(model, [StopOnNonFinite("stop")], data=data_with_nan())

    truth = hand_loop.train(batches=hand_loop.global_batches()[: BAD_STEP - 1])
    hand_loop.assert_same(model, truth.weights)
    assert len(history["loss"]) == 1
    assert np.isfinite(history["loss"]).all()


@each_strategy
def test_restore_goes_on_as_if_the_batch_were_not_there(strategy):
    model = hand_loop.make_model(strategy, metrics=["mae"])
    callbacks = [GradientClipping(norm=10.0), StopOnNonFinite("restore"), LossAverages()]

    with pytest.warns(UserWarning, match="goes on with the next batch"):
        history = hand_loop.fit(model, callbacks, data=data_with_nan())

    truth = hand_loop.train(batches=good_batches(epochs=2))
    hand_loop.assert_same(model, truth.weights)
    assert np.isfinite([*history["loss"], *history["mae"], *history["loss (raw)"]]).all()


def scaled_sgd():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))


@each_strategy
@pytest.mark.parametrize("arguments", [{}, *exhaustive({"run_eagerly": True})])
def test_a_loss_that_is_scaled_goes_on_as_if_the_batch_were_not_there(strategy, arguments):
    model = hand_loop.make_model(strategy, scaled_sgd, metrics=["mae"], **arguments)
    callbacks = [GradientClipping(norm=10.0), StopOnNonFinite("restore")]

    with pytest.warns(UserWarning, match=r"weights are those of step \d+\. Training goes on"):
        history = hand_loop.fit(model, callbacks, data=data_with_nan())

    truth = hand_loop.train(batches=good_batches(epochs=2))
    hand_loop.assert_same(model, truth.weights)
    assert np.isfinite([*history["loss"], *history["mae"]]).all()
    # Once in each epoch.
    assert model.optimizer.dynamic_scale.numpy() == model.optimizer.initial_scale / 4


def infinite_with_finite_gradients(y, p):
    return tf.reduce_mean(p, axis=-1) + tf.reduce_mean(y, axis=-1)


def test_a_scaled_loss_is_left_out_where_its_gradients_are_finite():
    x, y = examples()
    y = y.copy()
    y[16 * BAD_STEP - 1] = np.inf
    model = hand_loop.make_model(strategies.get("one device"), scaled_sgd)
    with model.distribute_strategy.scope():
        model.compile(scaled_sgd(), infinite_with_finite_gradients)

    with pytest.raises(FloatingPointError, match="Step 4 is not finite: the loss 'loss' is inf"):
        hand_loop.fit(model, [StopOnNonFinite()], data=(x, y))

    assert model.optimizer.iterations.numpy() == BAD_STEP - 1


def test_what_overflows_without_compilation_is_not_taken_for_a_step_without_an_optimizer():
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=2.0**127
        )

    model = hand_loop.make_model(strategies.get("one device"), optimizer, run_eagerly=True)

    x, y = examples()
    hand_loop.fit(model, [GradientClipping(norm=10.0)], data=(10 * x, 10 * y))

    assert model.optimizer.dynamic_scale.numpy() < 2.0**127


class CompileAt(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self._batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._batch:
            self.model.compile(self.model.optimizer, "mse")


def test_a_callback_may_compile_the_model_after_the_last_step():
    x, y = data_with_nan()
    num_good = 16 * (BAD_STEP - 1)
    data = x[:num_good], y[:num_good]
    plain = hand_loop.make_model(tf.distribute.get_strategy())
    model = hand_loop.make_model(strategies.get("one device"))
    last = CompileAt(BAD_STEP - 2)

    expected = hand_loop.fit(plain, [last], data=data, epochs=1)
    history = hand_loop.fit(model, [last, StopOnNonFinite()], data=data, epochs=1)

    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    hand_loop.assert_same(model, plain.get_weights())


def test_a_bad_step_is_told_where_the_model_is_compiled_after_it():
    model, (x, y) = hand_loop.make_model(strategies.get("one device")), data_with_nan()
    num_examples = 16 * BAD_STEP
    data, last = (x[:num_examples], y[:num_examples]), CompileAt(BAD_STEP - 1)

    with pytest.raises(FloatingPointError, match=r"^Step 4 is not finite"):
        hand_loop.fit(model, [last, StopOnNonFinite()], data=data, epochs=1)


def test_every_bad_step_is_told_where_training_goes_on():
    model, (x, y) = hand_loop.make_model(strategies.get("one device")), data_with_nan()
    x[0] = np.nan
    num_examples = 16 * BAD_STEP
    data, last = (x[:num_examples], y[:num_examples]), CompileAt(BAD_STEP - 1)

    # The count of the optimizer leaves out the first one.
    with (
        pytest.warns(UserWarning, match=r"^Step 1 is not finite"),
        pytest.warns(UserWarning, match=r"^Step 3 is not finite"),
    ):
        hand_loop.fit(model, [last, StopOnNonFinite("restore")], data=data, epochs=1)


def test_restore_gives_up_after_some_steps():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    callback = StopOnNonFinite("restore", max_restores=2)

    with (
        pytest.raises(FloatingPointError, match="That is number 3, and max_restores=2"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        hand_loop.fit(model, [callback], data=data_with_nan(), epochs=5)


@each_kind_of_strategy
def test_statistics_of_batch_normalization_stay(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True)
        model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hand_loop.fit(model, [StopOnNonFinite("restore")], data=data_with_nan(), epochs=1)

    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert not np.allclose(np.asarray(layer.moving_mean), 0)


class Reciprocal(keras.layers.Layer):
    """Divides by what can be 0."""

    def call(self, x):
        return 1 / x


@each_kind_of_strategy
def test_the_first_layer_is_named(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.ReLU(),
                Reciprocal(name="reciprocal"),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")

    with pytest.raises(FloatingPointError, match=r"layer 'reciprocal' \(Reciprocal\)"):
        hand_loop.fit(model, [StopOnNonFinite()])


def test_a_gradient_alone():
    @tf.custom_gradient
    def broken(x):
        return x, lambda gradient: gradient * np.inf

    class Broken(keras.layers.Layer):
        def call(self, x):
            return broken(x)

    with strategies.get("2 replicas").scope():
        hidden = keras.layers.Dense(3, name="hidden")
        model = keras.Sequential([keras.Input((6,)), hidden, Broken(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    with pytest.raises(FloatingPointError, match=r"Step 1 .* the gradient of '.*hidden/bias'"):
        hand_loop.fit(model, [StopOnNonFinite()])


def test_the_replica_and_the_largest_gradients_before_are_named():
    model = hand_loop.make_model(strategies.get("2 replicas"))

    with pytest.raises(
        FloatingPointError, match=r"on replica 1 of 2: .* before \(.*of replica 0\): .*kernel \d"
    ):
        hand_loop.fit(model, [StopOnNonFinite()], data=data_with_nan())


class TwoUpdates(keras.Model):
    """A model whose second update in a step is not finite."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x):
        return self.second(x) + self.first(x)

    def train_step(self, data):
        x, _ = data
        for layer, factor in ((self.first, 1.0), (self.second, np.nan)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x)) * factor
            gradients = tape.gradient(loss, layer.trainable_variables)
            self.optimizer.apply(gradients, layer.trainable_variables)
        return {"loss": loss}


def test_what_a_step_updates_before_stays_and_is_told():
    with strategies.get("one device").scope():
        model = TwoUpdates()
        model(np.zeros((1, 6)))
        model.compile("sgd")
        model.optimizer.build(model.trainable_variables)
    first, second = (layer.kernel.numpy() for layer in (model.first, model.second))

    with pytest.raises(FloatingPointError, match=r"^Step 2 .* left out, and the updates that"):
        hand_loop.fit(model, [StopOnNonFinite()])

    assert np.all(model.first.kernel.numpy() != first)
    np.testing.assert_array_equal(model.second.kernel.numpy(), second)


def test_a_layer_may_be_frozen_before_the_first_step():
    model = hand_loop.make_model(strategies.get("one device"))
    freeze = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(model.layers[0], "trainable", False)
    )

    with pytest.raises(FloatingPointError, match=r"^Step 4 is not finite"):
        hand_loop.fit(model, [freeze, StopOnNonFinite()], data=data_with_nan())


def test_two_of_them_are_refused():
    model = hand_loop.make_model(strategies.get("one device"))

    with pytest.raises(ValueError, match="`callbacks` has 2 of StopOnNonFinite"):
        hand_loop.fit(model, [StopOnNonFinite(), StopOnNonFinite("restore")])


@each_kind_of_strategy
@pytest.mark.parametrize(
    "arguments",
    [
        {"own_train_step": True},
        {"steps_per_execution": 3},
        {"dtype": "mixed_float16"},
        *exhaustive({"run_eagerly": True}, {"jit_compile": True}),
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_every_way_of_training(strategy, arguments):
    model = hand_loop.make_model(strategy, **arguments)

    with pytest.raises(FloatingPointError, match=r"^Step 4 is not finite"):
        hand_loop.fit(model, [StopOnNonFinite()], data=data_with_nan())

    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@each_kind_of_strategy
def test_beside_averages_and_accumulation(strategy):
    model = hand_loop.make_model(strategy)
    average = MovingAverage(0.9)
    callbacks = [GradientAccumulation(steps=2), average, StopOnNonFinite("restore")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hand_loop.fit(model, callbacks, data=data_with_nan())

    truth = hand_loop.train(batches=hand_loop.in_groups(good_batches(epochs=2), 2))
    hand_loop.assert_same(model, truth.weights)
    assert all(np.isfinite(each).all() for each in average.get_state().values())


@each_strategy
def test_finite_steps_are_bit_equal_with_and_without(strategy):
    plain, model = (hand_loop.make_model(strategy) for _ in range(2))
    hand_loop.fit(plain)
    hand_loop.fit(model, [StopOnNonFinite()])

    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_batch_is_written(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    with pytest.raises(FloatingPointError):
        hand_loop.fit(model, [StopOnNonFinite(directory=tmp_path)], data=data_with_nan())

    x, y = np.load(tmp_path / "non-finite-step-4.npz").values()
    np.testing.assert_array_equal(x, data_with_nan()[0][48:64])
    np.testing.assert_array_equal(y, data_with_nan()[1][48:64])


class Autoencoder(keras.Model):
    """Learns what it is given: a tensor alone, ragged or not, or the last of several."""

    def __init__(self):
        super().__init__()
        self.top = keras.layers.Dense(6)

    def call(self, x):
        return self.top(x.to_tensor(shape=[None, 6]) if isinstance(x, tf.RaggedTensor) else x)

    def train_step(self, data):
        x = data[-1] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - 1.0))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def bfloat16(x):
    return tf.cast(x, tf.bfloat16)


def ragged(x):
    return tf.RaggedTensor.from_tensor(x)


def four(x):
    return 0 * np.nan_to_num(x), 0 * np.nan_to_num(x), np.ones(len(x), "float32"), x


def with_strings(x):
    return [f"example {number}" for number in range(len(x))], *four(x)[1:]


@each_kind_of_strategy
@pytest.mark.parametrize(
    ("form", "num_arrays"),
    [
        *exhaustive((tf.constant, 1), (bfloat16, 1)),
        (ragged, 2),
        *exhaustive((four, 4)),
        (with_strings, 4),
    ],
    ids=["dense", "bfloat16", "ragged", "four tensors", "strings"],
)
def test_data_that_is_not_inputs_and_labels(strategy, form, num_arrays, tmp_path):
    x, _ = data_with_nan()
    with strategy.scope():
        model = Autoencoder()
        model.compile("sgd")
        model(x[:1])
    data = tf.data.Dataset.from_tensor_slices(form(x)).batch(16)
    callback = StopOnNonFinite(directory=tmp_path)

    with pytest.raises(FloatingPointError, match=r"^Step 4 .*: the input contains NaN"):
        model.fit(data, shuffle=False, verbose=0, callbacks=[callback])

    assert callback.batch is not None
    assert len(list(np.load(tmp_path / "non-finite-step-4.npz").values())) == num_arrays


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"action": "ignore"}, "action='ignore'"), ({"max_restores": 0}, "max_restores=0")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        StopOnNonFinite(**arguments)


@pytest.mark.processes
def test_all_workers_say_the_same_step():
    errors = strategies.run_on_workers(error_of_worker, "2 workers")

    assert all(
        each.startswith("Step 4 is not finite on worker 1, replica 1 of 2") for each in errors
    )
    assert "see the message of that worker for the cause" in errors[0]
    assert "the input contains NaN" in errors[1]


def error_of_worker(strategy):
    model = hand_loop.make_model(strategy)
    try:
        hand_loop.fit(model, [StopOnNonFinite()], data=data_with_nan())
    except FloatingPointError as error:
        return str(error)


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_over_parameter_servers(workers):
    ((message, weights),) = strategies.run_on_workers(error_of_chief, workers)

    assert message.startswith("Step 4 is not finite: the input contains NaN or infinity.")
    truth = hand_loop.train(batches=hand_loop.global_batches()[: BAD_STEP - 1])
    hand_loop.assert_same(weights, truth.weights)


def error_of_chief(strategy):
    model = hand_loop.make_model(strategy)
    try:
        hand_loop.fit(model, [StopOnNonFinite()], data=data_with_nan())
    except FloatingPointError as error:
        return str(error), model.get_weights()


def test_the_folder_of_the_batch_stays_where_the_working_directory_changes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert StopOnNonFinite(directory="runs/1").directory == str(tmp_path / "runs/1")
