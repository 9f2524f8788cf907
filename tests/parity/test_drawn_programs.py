"""Programs that nobody has thought of: drawn at random, they give the numbers of plain Keras.

`make test` draws the same few each time. More, and others each time:

    make test-drawn EXAMPLES=2000
"""

import os

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as draws

from kerasdist.private.strategy_adapter import is_adapted
from tests.plain import check_as_plain
from tests.strategies import get

NUM_FEATURES, NUM_STEPS, NUM_WORDS = 3, 4, 7
EXAMPLES = os.environ.get("EXAMPLES")
SETTINGS = hypothesis.settings(
    max_examples=int(EXAMPLES or 4),
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    # Making a failure small takes longer than drawing all of `make test`.
    phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if EXAMPLES else [])],
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
)


class OwnStep(keras.Model):
    """Reduces a loss without reduction by itself."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            losses = keras.losses.mean_squared_error(y, self(x, training=True))
            if sample_weight is not None:
                losses *= tf.reshape(sample_weight, [-1])
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.compute_metrics(x, y, self(x), sample_weight)
        return {"loss": loss} | self.get_metrics_result()


class AddedLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x)))
        return x


def dense():
    return [keras.Input((NUM_FEATURES,)), keras.layers.Dense(4, "tanh", kernel_regularizer="l2")]


def normalized():
    return [
        keras.Input((NUM_FEATURES,)),
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5),
        keras.layers.Activation("tanh"),
    ]


def convolution():
    return [
        keras.Input((NUM_FEATURES,)),
        keras.layers.Reshape((NUM_FEATURES, 1)),
        keras.layers.Conv1D(3, 2, activation="tanh"),
        keras.layers.GlobalAveragePooling1D(),
    ]


def recurrent():
    return [
        keras.Input((NUM_STEPS,), dtype="int32"),
        keras.layers.Embedding(NUM_WORDS, 3, mask_zero=True),
        keras.layers.LSTM(3),
    ]


def added_loss():
    return [keras.Input((NUM_FEATURES,)), keras.layers.Dense(4, "tanh"), AddedLoss()]


MODELS = [dense, normalized, convolution, recurrent, added_loss]
OPTIMIZERS = {
    "SGD": lambda **kwargs: keras.optimizers.SGD(0.02, momentum=0.9, **kwargs),
    # Its default makes a step of 0.001 of a gradient that is all rounding.
    "Adam": lambda **kwargs: keras.optimizers.Adam(0.01, epsilon=0.1, **kwargs),
    "RMSprop": lambda **kwargs: keras.optimizers.RMSprop(0.01, epsilon=0.1, **kwargs),
    "AdamW": lambda **kwargs: keras.optimizers.AdamW(0.01, epsilon=0.1, **kwargs),
}
OPTIONS = [
    *({}, {"clipnorm": 0.05}, {"global_clipnorm": 0.05}, {"clipvalue": 0.01}),
    *({"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_momentum": 0.5}),
]


@draws.composite
def programs(draw):
    """Draws a program as choices with names, so that a failure can be read."""
    num_examples = draw(draws.integers(1, 23))
    return {
        "replicas": draw(draws.sampled_from([1, 2, 3, 4])),
        "body": draw(draws.sampled_from(MODELS)),
        "has_own_step": draw(draws.booleans()),
        "optimizer": draw(draws.sampled_from(list(OPTIMIZERS))),
        "options": draw(draws.sampled_from(OPTIONS)),
        "reduction": draw(
            draws.sampled_from(["sum_over_batch_size", "sum", "mean_with_sample_weight"])
        ),
        "form": draw(draws.sampled_from(["arrays", "dataset", "uncounted", "generator"])),
        "weights": draw(draws.sampled_from([None, "uniform", "zeros"])),
        "num_examples": num_examples,
        "batch_size": draw(draws.integers(1, 9)),
        "steps_per_execution": draw(draws.sampled_from([1, 1, 2, 5])),
        "run_eagerly": draw(draws.integers(0, 9)) == 0,
        "epochs": draw(draws.integers(1, 3)),
        "validates": draw(draws.booleans()),
        "schedules": draw(draws.booleans()),
    }


def arrays(program):
    rng = np.random.default_rng(program["num_examples"])
    number = program["num_examples"]
    x = rng.normal(size=(number, NUM_FEATURES)).astype("float32")
    if program["body"] is recurrent:
        x = rng.integers(0, NUM_WORDS, size=(number, NUM_STEPS)).astype("int32")
        x[:, 0] = 1  # Keras' own LSTM has no answer for a sequence without a word.
    y = np.tanh(x.sum(axis=1, keepdims=True)).astype("float32")
    if program["weights"] is None:
        return x, y
    weights = rng.uniform(0.5, 2, size=(number,)).astype("float32")
    return x, y, weights * (np.arange(number) % 3 > 0 if program["weights"] == "zeros" else 1)


def data(program, *, is_plain: bool) -> dict:
    """Returns the arguments of `fit` that are about data."""
    examples = arrays(program)
    size = program["batch_size"]
    batches = [
        tuple(each[start : start + size] for each in examples)
        for start in range(0, program["num_examples"], size)
    ]
    dataset = tf.data.Dataset.from_tensor_slices(examples).batch(size)
    if program["form"] == "arrays":
        names = ("x", "y", "sample_weight")
        return dict(zip(names, examples, strict=False)) | {"batch_size": size}
    if program["form"] == "generator":
        endless = (batch for _ in range(program["epochs"] + 1) for batch in batches)
        return {"x": endless, "steps_per_epoch": len(batches)}
    # Plain Keras counts a step without a batch where it cannot count the batches.
    is_counted = program["form"] == "dataset" or is_plain
    return {"x": dataset if is_counted else dataset.filter(lambda *_: True)}


def make(program):
    layers = [*program["body"](), keras.layers.Dense(1)]
    inputs = outputs = layers[0]
    for layer in layers[1:]:
        outputs = layer(outputs)
    model = (OwnStep if program["has_own_step"] else keras.Model)(inputs, outputs)
    model.compile(
        OPTIMIZERS[program["optimizer"]](**program["options"]),
        keras.losses.MeanSquaredError(reduction=program["reduction"]),
        metrics=["mae"],
        weighted_metrics=["mse"],
        steps_per_execution=program["steps_per_execution"],
        run_eagerly=program["run_eagerly"],
    )
    return model


def run(program, model):
    x, y, *_ = arrays(program)
    callbacks = []
    if program["schedules"]:
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        callbacks.append(schedule)
    history = model.fit(
        **data(program, is_plain=not is_adapted(model.distribute_strategy)),
        epochs=program["epochs"],
        validation_data=(x, y) if program["validates"] else None,
        callbacks=callbacks,
        verbose=0,
    ).history
    scores = model.evaluate(x, y, batch_size=program["batch_size"], verbose=0)
    return history, scores, model.predict(x, batch_size=program["batch_size"], verbose=0)


@pytest.mark.thorough
@pytest.mark.timeout(0 if EXAMPLES else 600)  # More take as long as they take.
@pytest.mark.filterwarnings("ignore::UserWarning")
@SETTINGS
@hypothesis.given(program=programs())
def test_a_drawn_program_gives_the_numbers_of_plain_keras(program):
    name = "one device" if program["replicas"] == 1 else f"{program['replicas']} replicas"
    keras.backend.clear_session()

    check_as_plain(
        get(name), lambda: make(program), lambda model: run(program, model), tolerance=1e-5
    )
