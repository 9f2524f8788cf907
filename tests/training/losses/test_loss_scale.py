"""Steps of one's own that scale the loss: the scale goes down and up as on one device."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import strategies
from tests.cases import exhaustive, named
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas, run_on_workers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype("float32")
Y = np.sin(X).sum(axis=1, keepdims=True)
# So small that no sum over examples overflows before what a single one adds to it.
X /= 10
# Of which the first steps overflow; float16 keeps 11 bits.
SCALE, TOLERANCE = 2.0**18, 2e-3


def make_optimizer(optimizer=keras.optimizers.SGD):
    return keras.optimizers.LossScaleOptimizer(optimizer(0.01), initial_scale=SCALE)


class Scales(keras.Model):
    """A model whose train_step scales the loss for its optimizer."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(5, "tanh", use_bias=False, dtype="mixed_float16")
        self.top = keras.layers.Dense(1, dtype="float32")
        self.other = None  # An optimizer for the top alone.

    def call(self, inputs):
        return self.top(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        parts = [(self.optimizer, [self.hidden, self.top])]
        if self.other:
            parts = [(self.optimizer, [self.hidden]), (self.other, [self.top])]
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            scaled = [optimizer.scale_loss(loss) for optimizer, _ in parts]
        for (optimizer, layers), each in zip(parts, scaled, strict=True):
            variables = [variable for layer in layers for variable in layer.trainable_variables]
            optimizer.apply(tape.gradient(each, variables), variables)
        return {"loss": loss}


class ReadsWeightsFirst(Scales):
    """Makes its weights in the first trace, and its optimizer updates them in the next one."""

    def train_step(self, data):
        return super().train_step(data) if self.built else {"loss": tf.reduce_mean(self(data[0]))}


class ScalesInFunction(Scales):
    """The same, compiled by its author."""

    train_step = tf.function(Scales.train_step)


def make(model_class=Scales, *, is_built=True, is_pair=False, **arguments):
    model = model_class()
    if is_built:
        model(X)
    if is_pair:
        model.other = make_optimizer(keras.optimizers.Adam)
    model.compile(make_optimizer(), **arguments)
    return model


def fit(model):
    """Returns the scales after two epochs each, and how many updates there were."""
    numbers = []
    for _ in range(2):
        # Parts of equal sizes: what one example adds is then the same to the last bit.
        model.fit(X, Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
        for optimizer in filter(None, (model.optimizer, model.other)):
            scale, count = optimizer.dynamic_scale, optimizer.iterations
            numbers.append((float(np.log2(scale.numpy())), float(count.numpy())))
    return numbers


@each_strategy
@pytest.mark.parametrize(
    "arguments",
    named(
        {
            "built": {},
            "not built": {"is_built": False, "steps_per_execution": 3},
            "two optimizers": {"is_pair": True},
            "tf.function": {"model_class": ScalesInFunction},
        },
        exhaustive={"built", "two optimizers", "tf.function"},
    ),
)
def test_the_scale_is_that_of_one_device(strategy, arguments):
    check_as_plain(strategy, functools.partial(make, **arguments), fit, tolerance=TOLERANCE)


@pytest.mark.processes
@pytest.mark.parametrize("workers", ["1 worker + 1 ps", *exhaustive("2 workers")])
def test_the_scale_of_workers_is_that_of_one_device(workers):
    truth = _numbers(contextlib.nullcontext())

    for each in run_on_workers(_train, workers):
        for found, expected in zip(each, truth, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def _train(strategy):
    with strategy.scope():
        late = make(ReadsWeightsFirst, is_built=False)
    fit(late)  # Traced twice again.
    return _numbers(strategy.scope())


def _numbers(scope):
    keras.utils.set_random_seed(11)
    with scope:
        model = make()
    return [np.array(fit(model)), *model.get_weights()]


class CountsTraces(Scales):
    """The same, which counts how often it is traced."""

    def train_step(self, data):
        if not tf.executing_eagerly():
            traces.append(self)
        return super().train_step(data)


traces: list = []


@on_three_replicas
@pytest.mark.parametrize(("scales", "num_traces"), [(True, 2), *exhaustive((False, 1))])
def test_a_step_is_traced_again_for_an_optimizer_that_keeps_a_scale_alone(
    scales, num_traces, strategy
):
    traces.clear()
    with strategy.scope():
        model = CountsTraces()
        model(X)
        model.compile(make_optimizer() if scales else "adam")

    model.fit(X, Y, batch_size=48, verbose=0)

    assert len(traces) == num_traces * strategy.num_replicas_in_sync


@on_three_replicas
def test_what_overflows_at_first_is_no_difference(strategy):
    with strategy.scope():
        model = make()
        model.optimizer.initial_scale = 2.0**30

    model.fit(X, Y, batch_size=13, shuffle=False, verbose=0)  # A warning is an error here.


class Divides(Scales):
    """A model whose train_step gives its optimizer gradients that were never scaled."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        scale = self.optimizer.initial_scale
        self.optimizer.apply([each * scale for each in gradients], self.trainable_variables)
        return {"loss": loss}


@on_three_replicas
def test_gradients_that_are_scaled_by_hand_stay_as_they_are(strategy):
    def make():
        model = Divides()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 4.0))
        return model

    def run(model):
        return model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, run, tolerance=TOLERANCE)


def test_outside_of_steps_a_loss_stays_as_it_is():
    with strategies.get("2 replicas").scope():
        optimizer = keras.optimizers.SGD()

    assert optimizer.scale_loss(3.0) == 3.0
