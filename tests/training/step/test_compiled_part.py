"""On several replicas XLA compiles what each computes by itself, and the rest stays outside."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers import trainer

from kerasdist.callbacks import GradientAccumulation, GradientClipping, StopOnNonFinite, Summaries
from tests import strategies, xla
from tests.plain import check_as_plain, check_workers
from tests.strategies import on_three_replicas, on_two_replicas, on_workers

RNG = np.random.default_rng(3)
# The last batch has one example, for several replicas.
X = RNG.normal(size=(25, 4)).astype("float32")
Y = RNG.normal(size=(25, 1)).astype("float32")
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


def largest_error(labels, predictions):
    return keras.ops.max(keras.ops.abs(labels - predictions))


def make(*layers, loss="mse", optimizer="adam", metrics=("mae",), model_class=None, **arguments):
    layers = [keras.layers.Dense(8, activation="relu"), *layers, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    if model_class is not None:
        model = model_class(model.inputs, model.outputs)
    arguments.setdefault("jit_compile", True)
    model.compile(optimizer, loss, metrics=list(metrics), **arguments)
    return model


def fit(model, **arguments):
    return model.fit(X, Y, **FIT | arguments).history


def trained(strategy, *layers, callbacks=(), **arguments):
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = make(*layers, **arguments)
    fit(model, callbacks=list(callbacks))
    return model


@on_two_replicas
def test_each_replica_has_one_function_with_its_gradient_and_without_sums_or_updates(strategy):
    model = trained(strategy)

    first, second = xla.compiled_in(model)
    assert first == second
    assert {"MatMul", "ReluGrad"} <= first
    assert not any("Collective" in each or "Adam" in each for each in first)


@on_three_replicas
@pytest.mark.parametrize(
    "arguments",
    [
        {"steps_per_execution": 3, "loss": keras.losses.MeanSquaredError("sum")},
        {"metrics": ["mae", largest_error], "weighted_metrics": ["mse"]},
    ],
    ids=["sum, 3 steps a call", "metrics of both kinds"],
)
def test_it_trains_evaluates_and_predicts_as_plain_keras(strategy, arguments):
    def run(model):
        history = fit(model, validation_data=(X[:7], Y[:7]))
        assert model.distribute_strategy is not strategy or xla.compiled_in(model)
        return history, model.evaluate(X, Y, batch_size=8, verbose=0), model.predict(X, verbose=0)

    check_as_plain(strategy, lambda: make(**arguments), run)


@on_workers
def test_workers_train_as_plain_keras(workers):
    check_workers(workers, fit_with_xla)


def fit_with_xla(strategy):
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = make()
    history = fit(model)
    is_divided = strategy.num_replicas_in_sync > 1
    assert not is_divided or len(xla.compiled_in(model)) == 2
    return history, model.get_weights()


@on_two_replicas
def test_labels_that_are_looked_up_for_each_example_and_for_all_are_rows_as_on_one_device(strategy):
    class Positions(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = keras.layers.Embedding(9, 4), keras.layers.Embedding(6, 4)

        def call(self, tokens):
            return self.tokens(tokens) + self.places(keras.ops.arange(5))

    def make():
        model = keras.Sequential([keras.Input((5,), dtype="int32"), Positions()])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(1))
        model.compile("adam", "mse", jit_compile=True)
        return model

    def run(model):
        tokens = np.random.default_rng(1).integers(0, 9, (25, 5))
        history = model.fit(tokens, Y, **FIT).history
        assert model.distribute_strategy is not strategy or len(xla.compiled_in(model)) == 2
        return history

    check_as_plain(strategy, make, run)


class Noise(keras.layers.Layer):
    """Draws from the generator of the program, which all replicas share."""

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


@on_two_replicas
def test_generators_move_on_as_in_steps_without_xla(strategy):
    found = []
    for jit_compile in (False, True):
        layer = keras.layers.GaussianNoise(0.5, seed=5)
        model = trained(strategy, layer, Noise(), jit_compile=jit_compile, optimizer="sgd")
        own = np.asarray(layer.seed_generator.state)
        # XLA makes other normal numbers of the same seed, in plain Keras as well.
        found.append((*own.tolist(), float(keras.random.uniform(()))))
        assert bool(xla.compiled_in(model)) == jit_compile

    assert found[0] == found[1]


@on_two_replicas
def test_statistics_of_each_replica_are_set_inside(strategy):
    statistics = []
    for jit_compile in (False, True):
        layer = keras.layers.BatchNormalization()
        with pytest.warns(UserWarning, match="uses the statistics of each"):
            model = trained(strategy, layer, jit_compile=jit_compile)
        statistics.append(np.concatenate([layer.moving_mean, layer.moving_variance]))
        assert bool(xla.compiled_in(model)) == jit_compile

    np.testing.assert_allclose(*statistics, rtol=0, atol=1e-5)


@on_three_replicas
def test_callbacks_see_the_gradient_of_the_whole_batch(strategy):
    def run(model):
        callbacks = [GradientClipping(global_norm=0.1), StopOnNonFinite()]
        if model.distribute_strategy is not strategy:
            model.optimizer.global_clipnorm, callbacks = 0.1, []
        return fit(model, callbacks=callbacks)

    check_as_plain(strategy, lambda: make(optimizer="sgd"), run)


@on_two_replicas
def test_accumulated_gradients_know_what_losses_are_divided_by(strategy):
    model = trained(strategy, callbacks=[GradientAccumulation(steps=2)])

    assert len(xla.compiled_in(model)) == 2


@on_two_replicas
def test_steps_at_whose_layers_a_callback_looks_run_without_xla(strategy, tmp_path):
    model = trained(strategy, callbacks=[Summaries(tmp_path, every_steps=100)])

    graphs = model.train_function._graphs._graphs
    assert list(graphs) == [("next", False, False), ("next", True, False)]
    assert len(xla.compiled_in(model)) == 2


class Counting(keras.layers.Layer):
    """Counts its steps, whatever examples they have."""

    def build(self, _):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.count.assign(self.count + 1)
        return x


@on_three_replicas
def test_a_state_that_counts_steps_counts_those_of_replicas_without_examples(strategy):
    layer = Counting()
    trained(strategy, layer)

    counts = [float(each) for each in strategy.experimental_local_results(layer.count.value)]
    assert counts == [8.0] * 3


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class Tosses(keras.layers.Layer):
    def call(self, x, training=False):
        return x * keras.random.uniform(()) if training else x


class Scaled(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        return super().apply([2 * each for each in grads], trainable_variables)


WITHOUT = {
    "own step": (lambda: {"model_class": OwnStep}, "is not Keras' own"),
    "own apply": (lambda: {"optimizer": Scaled(0.1)}, "applies gradients in a way of its own"),
    "Dice": (lambda: {"loss": keras.losses.Dice()}, "meet before they have their gradients"),
    "synchronized": (
        lambda: {"layer": keras.layers.BatchNormalization(synchronized=True)},
        "synchronized batch normalizations",
    ),
    "one number for all": (lambda: {"layer": Tosses()}, "meet before they have their gradients"),
}


@on_two_replicas
@pytest.mark.parametrize("name", WITHOUT)
def test_where_replicas_meet_before_the_gradient_a_warning_says_why_once(strategy, name):
    make_arguments, reason = WITHOUT[name]
    weights = []
    for jit_compile in (False, True):
        with strategy.scope():
            arguments = make_arguments()
        layers = [arguments.pop("layer")] if "layer" in arguments else []
        told = pytest.warns(UserWarning, match=f"`jit_compile=True` has no effect.*{reason}")
        if jit_compile:
            with told as warnings:
                model = trained(strategy, *layers, jit_compile=True, **arguments)
            assert len(warnings) == 1
        else:
            model = trained(strategy, *layers, jit_compile=False, **arguments)
        assert not xla.compiled_in(model)
        weights.append(model.get_weights())

    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_tensorflow_compiles_nothing_whose_variables_are_on_another_device():
    strategies.get("2 replicas")  # Makes a second device.
    with tf.device("CPU:1"):
        variable = tf.Variable(1.0)

    @tf.function
    def step():
        with tf.device("CPU:0"):
            return tf.function(variable.read_value, jit_compile=True)()

    with pytest.raises(tf.errors.InvalidArgumentError, match="Trying to access resource"):
        step()


@on_two_replicas
def test_an_error_of_the_program_is_the_programs(strategy):
    class Wrong(keras.layers.Layer):
        def call(self, x):
            if not isinstance(x, keras.KerasTensor):
                raise NotImplementedError("no such layer yet")
            return x

    with pytest.raises(NotImplementedError, match="no such layer yet"):
        trained(strategy, Wrong())


@pytest.mark.parametrize("name", ["one device", "2 replicas"])
def test_auto_is_in_our_scopes_what_it_is_without_one(name, monkeypatch):
    strategy = strategies.get(name)
    with strategy.scope():
        assert not make(jit_compile="auto").jit_compile

        xla.turn_on_auto(monkeypatch)
        assert not make(jit_compile=False).jit_compile
    model = trained(strategy, jit_compile="auto")

    assert model.jit_compile
    assert len(xla.compiled_in(model)) == strategy.num_replicas_in_sync


class Centered(keras.layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


@pytest.mark.filterwarnings("ignore:.*each replica computes the whole batch")
@pytest.mark.parametrize(
    ("layers", "model_class", "reason"),
    [
        ([], OwnStep, "replicas may meet anywhere in a step that is not Keras' own"),
        ([Centered], None, "each of them computes the whole batch"),
    ],
)
def test_auto_says_in_a_line_why_it_compiles_nothing(
    layers, model_class, reason, monkeypatch, capsys
):
    xla.turn_on_auto(monkeypatch)
    layers = [make_layer() for make_layer in layers]

    trained(strategies.get("2 replicas"), *layers, jit_compile="auto", model_class=model_class)

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("XLA")]
    assert lines == [f"XLA: off on 2 replicas, {reason}."]


def test_auto_is_off_where_keras_says_that_the_model_does_not_support_it(monkeypatch):
    xla.turn_on_auto(monkeypatch)
    monkeypatch.setattr(trainer, "model_supports_jit", lambda model: False)

    with strategies.get("2 replicas").scope():
        model = make(jit_compile="auto")

    assert not model.jit_compile


@on_two_replicas
def test_replicas_predict_by_functions_that_xla_compiles(strategy):
    with strategy.scope():
        model = make()
    graphs = []
    model.predict(X, verbose=0)
    for trace in model.predict_function._run._list_all_concrete_functions():
        nodes = trace.graph.as_graph_def().node
        graphs += [node for node in nodes if node.attr["_XlaMustCompile"].b]

    assert len(graphs) >= 2


@on_two_replicas
def test_what_xla_cannot_compile_is_predicted_without_it(strategy):
    class Texts(keras.Model):
        def call(self, inputs):
            return {"x": 2 * inputs, "text": tf.strings.as_string(inputs)}

    with strategy.scope():
        model = Texts()
        model.compile(jit_compile=True)
        model.build((None, 4))
    with pytest.warns(UserWarning, match="`predict` ends with"):
        outputs = model.predict(X, verbose=0)

    np.testing.assert_array_equal(outputs["x"], 2 * X)
