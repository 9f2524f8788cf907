"""What a step assigns, draws and updates, on synchronous workers of parameter servers.

All programs of a cluster run one after the other, so that it is started once. The truth is one
device with the joined batches; of what each batch does by itself (plain BatchNormalization, random
numbers) it is two replicas, each with one of these batches.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks
from tests import fork_server, strategies

BATCH_SIZE = 4  # Of one worker.
# The last update of an epoch has one batch of two examples.
NUM_EXAMPLES, NUM_OF_FULL_UPDATES = 26, 24
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
IDS = np.random.default_rng(1).integers(0, 20, size=(NUM_EXAMPLES, 4))
WEIGHTS = np.random.default_rng(2).integers(1, 4, size=NUM_EXAMPLES).astype("float32")
# Nothing counts in one batch of a worker, and in all of an update.
NO_WEIGHTS = WEIGHTS * np.repeat([0, 1, 0, 0, 1, 1, 1], BATCH_SIZE)[:NUM_EXAMPLES]
MASKED_IDS = IDS * np.random.default_rng(3).integers(0, 2, size=IDS.shape)
# With the first scale of a loss, the gradient of the first example has 16 bits if it is divided by
# the examples of an update, and is infinite if by those of a batch.
LARGE = np.where(np.arange(NUM_OF_FULL_UPDATES)[:, np.newaxis] == 0, 5, 0.1 * Y[:24])
INFINITE = np.where(np.arange(NUM_EXAMPLES)[:, np.newaxis] == 14, np.inf, X).astype("float32")


class Counting(keras.layers.Layer):
    """Counts its calls in a state, and in one that replicas have together."""

    def build(self, shape):
        number = {"shape": (), "dtype": "int64", "initializer": "zeros", "trainable": False}
        self.calls = self.add_weight(**number, name="calls")
        self.examples = self.add_weight(**number, name="examples", aggregation="sum")
        self.mean = self.add_weight(shape=(), trainable=False, name="mean", aggregation="mean")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
            self.examples.assign_add(tf.shape(x, "int64")[0])
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x))
        return x


class Noisy(keras.layers.Layer):
    """Draws from the generator of the program, that of numbers without a seed."""

    def call(self, x, training=False):
        return x + 0.1 * keras.random.normal(tf.shape(x)) if training else x


def dense(*layers, optimizer="sgd", **arguments):
    model = keras.Sequential(
        [keras.Input((3,)), *layers, keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(**{"optimizer": optimizer, "loss": "mse", "metrics": ["mae"], **arguments})
    return model


def with_each_optimizer(optimizers, make_layer, inputs):
    """Returns a model with a layer for each optimizer, which it alone updates."""
    x = inputs
    layers = [make_layer(name) for name in optimizers]
    outputs = keras.layers.Add()([keras.layers.Flatten()(layer(x)) for layer in layers])
    model = keras.Model(x, keras.ops.mean(outputs, axis=1, keepdims=True))
    of_name = {name: make() for name, make in optimizers.items()}
    choose = keras.optimizers.MultiOptimizer(lambda each: of_name[each.path.split("/")[0]])
    model.compile(choose, "mse")
    return model


OF_ROWS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True, global_clipnorm=0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
}
OF_WEIGHTS = {
    **OF_ROWS,
    "clipped": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01, weight_decay=0.1),
    "accumulated": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
}


def all_optimizers():
    def make_layer(name):
        constraint = "unit_norm" if name == "momentum" else None
        return keras.layers.Dense(4, "tanh", name=name, kernel_constraint=constraint)

    return with_each_optimizer(OF_WEIGHTS, make_layer, keras.Input((3,)))


def all_optimizers_of_rows():
    def make_layer(name):
        return keras.layers.Embedding(20, 3, name=name)

    return with_each_optimizer(OF_ROWS, make_layer, keras.Input((4,), dtype="int64"))


def masked(reduction="sum_over_batch_size"):
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            keras.layers.Embedding(20, 3, mask_zero=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", keras.losses.MeanSquaredError(reduction))
    return model


def in_eight_bits():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    for layer in model.layers:
        layer.quantize("float8")
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def scaled(**arguments):
    scaling = {"initial_scale": 8.0, "dynamic_growth_steps": 2}
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), **scaling)
    return dense(optimizer=optimizer, **arguments)


def mixed():
    kept = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return dense()  # Keras scales the loss.
    finally:
        keras.config.set_dtype_policy(kept)


def all_callbacks():
    return [
        callbacks.GradientMultipliers({".*/kernel": 3.0}),
        callbacks.GradientAccumulation(2),
        callbacks.GradientClipping(global_norm=0.5),
        callbacks.MovingAverage(0.5, validate=True),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program that is trained.

    Attributes:
        make: Makes its model.
        given: Returns what `fit` is given besides or instead.
        truth: The deployment that it ends as.
        tolerance: Relative.
    """

    make: Callable
    given: Callable = dict
    truth: str = "one device"
    tolerance: float = 1e-5


def full_updates():
    return {"x": X[:NUM_OF_FULL_UPDATES], "y": Y[:NUM_OF_FULL_UPDATES]}


def weighted_loss():
    return keras.losses.MeanSquaredError("mean_with_sample_weight")


def rows_and_weights(optimizer):
    ids, x = keras.Input((4,), dtype="int64", name="ids"), keras.Input((3,), name="x")
    rows = keras.layers.Flatten()(keras.layers.Embedding(20, 3)(ids))
    y = keras.layers.Concatenate()([rows, x])
    y = keras.layers.Dense(4, "tanh", kernel_constraint="unit_norm")(y)
    model = keras.Model({"ids": ids, "x": x}, keras.layers.Dense(1)(y))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def rows():
    return {"x": {"ids": IDS, "x": X}}


# What steps assign, draw and count.
STATES = {
    "states": Program(
        make=lambda: dense(Counting(), keras.layers.SpectralNormalization(keras.layers.Dense(4)))
    ),
    "batch normalization": Program(
        make=lambda: dense(keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5)),
        given=full_updates,
        truth="2 replicas",
    ),
    "random numbers": Program(
        make=lambda: dense(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1), Noisy()),
        given=full_updates,
        truth="2 replicas",
    ),
    "weighted": Program(
        make=lambda: dense(loss=weighted_loss(), weighted_metrics=["mae"]),
        given=lambda: {"sample_weight": NO_WEIGHTS},
    ),
    "weighted, scaled and accumulated": Program(
        make=lambda: scaled(loss=weighted_loss()),
        given=lambda: {"sample_weight": NO_WEIGHTS, "callbacks": all_callbacks()},
    ),
    "classes with weights": Program(
        make=lambda: dense(loss="binary_crossentropy", optimizer=keras.optimizers.SGD(0.1)),
        given=lambda: {"y": (Y > 0).astype("int64"), "class_weight": {0: 1.0, 1: 3.0}},
    ),
    "masked": Program(make=masked, given=lambda: {"x": MASKED_IDS, "y": np.stack([Y] * 4, axis=1)}),
}
UPDATES = {
    "all optimizers": Program(make=all_optimizers, tolerance=1e-4),
    "all optimizers, rows": Program(
        make=all_optimizers_of_rows, given=lambda: {"x": IDS}, tolerance=1e-4
    ),
    "float8": Program(make=in_eight_bits, given=full_updates, tolerance=1e-3),
    "not finite": Program(make=scaled, given=lambda: {"x": INFINITE}),
    "mixed precision": Program(
        make=mixed, given=lambda: {**full_updates(), "y": LARGE}, tolerance=2e-3
    ),
}


# With weights of which each parameter server has some rows.
DIVIDED = {
    "accumulated": Program(
        make=lambda: rows_and_weights(
            keras.optimizers.AdamW(0.05, gradient_accumulation_steps=2, global_clipnorm=0.5)
        ),
        given=rows,
    ),
    "averaged": Program(
        make=lambda: rows_and_weights(
            keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=3)
        ),
        given=rows,
    ),
    "changed by callbacks": Program(
        make=lambda: rows_and_weights("adam"),
        given=lambda: {**rows(), "callbacks": all_callbacks()},
    ),
}


def train(strategy, program, batch_size):
    """Returns all variables and the logs of two epochs, by their names."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = program.make()
    history = model.fit(
        **{
            **{"x": X, "y": Y, "batch_size": batch_size, "epochs": 2, "shuffle": False},
            **{"verbose": 0, **program.given()},
        }
    )
    variables = [*model.variables, *model.optimizer.variables]
    values = {f"{index} {each.path}": np.array(each) for index, each in enumerate(variables)}
    return values, history.history


def train_all(programs, strategy):
    return {name: train(strategy, program, BATCH_SIZE) for name, program in programs.items()}


def check_as_truth(found, programs):
    for name, program in programs.items():
        expected = train(strategies.get(program.truth), program, 2 * BATCH_SIZE)
        for values, others in zip(found[name], expected, strict=True):
            assert len(values) == len(others), name
            for key, value, other in zip(values, values.values(), others.values(), strict=True):
                np.testing.assert_allclose(
                    np.asarray(value, "float64"),
                    np.asarray(other, "float64"),
                    rtol=program.tolerance,
                    atol=program.tolerance / 10,
                    err_msg=f"{name}: {key}",
                )


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Batch normalization .* uses the statistics of each of 2")
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
@pytest.mark.parametrize("programs", [STATES, UPDATES], ids=["states", "updates"])
def test_programs_end_as_on_one_device(workers, programs):
    (found,) = strategies.run_on_workers(functools.partial(train_all, programs), workers)

    check_as_truth(found, programs)


def train_divided():
    return train_all(DIVIDED, make_divided_strategy())


def make_divided_strategy():
    config = kerasdist.DeploymentConfig(num_replicas=2, num_ps_tasks=2, sync_replicas=True)

    def partitioner(shape, dtype):
        return [2 if shape[0] > 1 else 1] + [1] * (len(shape) - 1)

    return kerasdist.make_strategy(config, variable_partitioner=partitioner)


@pytest.mark.processes
def test_programs_with_divided_weights_end_as_on_one_device():
    outputs = fork_server.run_cluster(train_divided, num_workers=2, num_ps=2, timeout_secs=240)

    for output in outputs:
        assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
    check_as_truth(outputs[0].value, DIVIDED)
