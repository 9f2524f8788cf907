"""Checkpoints of what others change: layers that save in their own way, callbacks of all kinds."""

import functools
import os
import signal

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint, MovingAverage
from kerasdist.checkpoints import Folder
from tests import strategies
from tests.callbacks import test_checkpoint
from tests.callbacks.test_checkpoint import (
    Interrupt,
    Interrupted,
    arrays,
    assert_equal,
    names,
    train,
)
from tests.cases import exhaustive, named
from tests.strategies import each_kind_of_strategy, on_three_replicas

pytestmark = pytest.mark.thorough

LAYERS = {
    "Dense": lambda **kwargs: keras.layers.Dense(8, **kwargs),
    "EinsumDense": lambda **kwargs: keras.layers.EinsumDense("ab,bc->ac", 8, **kwargs),
    "Embedding": lambda **kwargs: keras.layers.Embedding(9, 4, **kwargs),
    "Conv1D": lambda **kwargs: keras.layers.Conv1D(4, 2, **kwargs),
    "Conv2D": lambda **kwargs: keras.layers.Conv2D(4, 2, **kwargs),
}
# What a layer takes, of data [batch, 6].
BEFORE = {
    "Embedding": keras.layers.ReLU,  # Indices, when they are rounded down.
    "Conv1D": lambda: keras.layers.Reshape((6, 1)),
    "Conv2D": lambda: keras.layers.Reshape((3, 2, 1)),
}


def with_lora(name="Dense", *, dtype=None, quantized=None, optimizer=keras.optimizers.Adam):
    """Returns a function that makes a model with LoRA in one of `LAYERS`, for `train`."""

    def make(strategy):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            layer = LAYERS[name](dtype=dtype)
            before = BEFORE.get(name, keras.layers.Identity)()
            after = [keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((6,)), before, layer, *after])
            if quantized:
                layer.quantize(quantized)
            layer.enable_lora(2)
            model.compile(optimizer(0.02), "mse", metrics=["mae"])
        return model

    return make


def plain(strategy):
    """Returns a model with an optimizer that has a learning rate and momentum to be changed."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def interrupted(strategy, folder, *, make, **arguments):
    arguments = {"after": 10, **arguments}
    return test_checkpoint.interrupted(strategy, arrays, folder, make=make, **arguments)


def assert_lora_goes_on(strategy, make, folder):
    expected = train(strategy, arrays, make=make)

    found = interrupted(strategy, folder, make=make)

    assert_equal(found, expected, strategy)
    low_rank = [each.numpy() for each in found[0].weights if "lora" in each.name]
    assert len(low_rank) == 2
    assert all(each.any() for each in low_rank)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", ["Dense", "EinsumDense", "Embedding", "Conv1D", "Conv2D"])
def test_lora_goes_on(layer, tmp_path):
    assert_lora_goes_on(strategies.get("one device"), with_lora(layer), tmp_path)


@on_three_replicas
def test_lora_goes_on_with_replicas(strategy, tmp_path):
    assert_lora_goes_on(strategy, with_lora(), tmp_path)


@pytest.mark.parametrize(
    ("layer", "mode"),
    [
        ("Dense", "int8"),
        *exhaustive(
            ("Embedding", "int4"),
            ("Dense", "int4"),
            ("EinsumDense", "int8"),
            ("EinsumDense", "int4"),
            ("Embedding", "int8"),
        ),
    ],
)
def test_lora_beside_a_quantized_kernel_goes_on(layer, mode, tmp_path):
    make = with_lora(layer, quantized=mode)
    assert_lora_goes_on(strategies.get("one device"), make, tmp_path)


def test_lora_with_bfloat16_goes_on(tmp_path):
    make = with_lora(dtype="bfloat16")
    assert_lora_goes_on(strategies.get("one device"), make, tmp_path)


def test_the_file_holds_the_merged_kernel_for_keras(tmp_path):
    strategy = strategies.get("one device")
    model, _ = train(strategy, arrays, [Checkpoint(tmp_path)], make=with_lora())
    other = keras.models.clone_model(model)

    other.load_weights(tmp_path / "step-00000021/model.weights.h5")

    x, _ = arrays()
    np.testing.assert_allclose(other.predict(x), model.predict(x), atol=1e-5)


def test_weights_that_keras_saves_as_they_are_are_saved_once(tmp_path):
    train(strategies.get("one device"), arrays, [Checkpoint(tmp_path)])

    saved = Folder(str(tmp_path)).read(21)
    assert not [name for name in saved.arrays if name.startswith("weight/")]


def test_the_weights_alone_are_those_of_lora(tmp_path):
    strategy = strategies.get("one device")
    model, _ = train(strategy, arrays, [Checkpoint(tmp_path)], make=with_lora())

    callback = Checkpoint(tmp_path, weights_if_changed=True)
    make = with_lora(optimizer=lambda _: keras.optimizers.SGD(0.0))
    other, _ = train(strategy, arrays, [callback], make=make)

    for ours, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Frugal(keras.layers.Dense):
    """Leaves its weights out of files."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@each_kind_of_strategy
def test_a_layer_that_leaves_its_weights_out_of_files_goes_on(strategy, tmp_path):
    def make(strategy):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), Frugal(8), keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
        return model

    expected = train(strategy, arrays, make=make)

    found = interrupted(strategy, tmp_path, make=make)

    assert_equal(found, expected, strategy)


@pytest.mark.exhaustive
def test_averages_of_bfloat16_go_on(tmp_path):
    def make(strategy):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            dense = keras.layers.Dense(1, dtype="bfloat16")
            model = keras.Sequential([keras.Input((6,)), dense])
            model.compile("adam", "mse", metrics=["mae"])
        return model

    strategy = strategies.get("one device")
    averages = [MovingAverage(0.9) for _ in range(3)]
    train(strategy, arrays, averages[:1], make=make)

    rest = iter(averages[1:])
    interrupted(strategy, tmp_path, make=make, callbacks=lambda: (next(rest),))

    expected, found = (averages[number].get_state().values() for number in (0, 2))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Shrink(keras.callbacks.Callback):
    """Changes weights, momentum and learning rate when an epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        optimizer = self.model.optimizer
        momentums = optimizer.momentums if optimizer.built else []  # By the first step.
        for variable in [*self.model.weights, *momentums, optimizer.learning_rate]:
            variable.assign(0.75 * variable.numpy())


class ShrinkInSteps(keras.callbacks.Callback):
    """Changes the learning rate before each step, and the weights after it."""

    def on_train_batch_begin(self, batch, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(0.9375 * rate.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self.model.set_weights([0.75 * each for each in self.model.get_weights()])


class Anew(keras.callbacks.Callback):
    """Sets weights and learning rate when the training begins."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate.assign(0.03)
        self.model.set_weights([np.full_like(each, 0.5) for each in self.model.get_weights()])


def halve():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)


CHANGING = {
    "a relative schedule": halve,
    "weights": Shrink,
    "in steps": ShrinkInSteps,
    "at first": Anew,
}
ORDERS = {"first": lambda own, other: [own, other], "last": lambda own, other: [other, own]}


@functools.cache
def uninterrupted(strategy, changing):
    """Returns the model and the history of a run that many tests compare theirs with."""
    return train(strategy, arrays, [changing()], make=plain)


def assert_goes_on(strategy, changing, order, folder, *, after=10, every_steps=4):
    expected = uninterrupted(strategy, changing)
    with pytest.raises(Interrupted):
        own = Checkpoint(folder, every_steps=every_steps)
        train(strategy, arrays, [*order(own, changing()), Interrupt(after)], make=plain)

    for _ in range(2):  # The second time it is finished.
        own = Checkpoint(folder, every_steps=every_steps)
        found = train(strategy, arrays, order(own, changing()), make=plain)
        assert own.resumed_from
        assert_equal(found, expected, strategy)


EVERY_STEPS = (None, 4, 7)  # Epochs have 7 steps.
# Each two of them meet. `make test` has the one that changes the most, and "weights" on replicas.
PAIRWISE = [
    pytest.param(
        CHANGING[name],
        ORDERS[order],
        every_steps,
        id=f"{name}-{order}-{every_steps}",
        marks=[pytest.mark.exhaustive] * ((name, every_steps) != ("in steps", 4)),
    )
    for row, name in enumerate(CHANGING)
    for column, every_steps in enumerate(EVERY_STEPS)
    for order in [list(ORDERS)[(row + column) % 2]]
]


@pytest.mark.parametrize(("changing", "order", "every_steps"), PAIRWISE)
def test_what_callbacks_change_is_changed_once(changing, order, every_steps, tmp_path):
    strategy = strategies.get("one device")
    assert_goes_on(strategy, changing, order, tmp_path, every_steps=every_steps)


@on_three_replicas
def test_what_callbacks_change_is_changed_once_with_replicas(strategy, tmp_path):
    assert_goes_on(strategy, Shrink, ORDERS["last"], tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("after", [8, 5, 7, 21])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_wherever_it_is_interrupted(order, after, tmp_path):
    strategy = strategies.get("one device")
    assert_goes_on(strategy, Shrink, order, tmp_path, after=after, every_steps=1)


class TellAt(keras.callbacks.Callback):
    """Tells this process to end: when the training begins, or before an update."""

    def __init__(self, update=None):
        super().__init__()
        self.update = update

    def on_train_begin(self, logs=None):
        if self.update is None:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_begin(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


@each_kind_of_strategy
@pytest.mark.parametrize("order", named(ORDERS, exhaustive={"last"}))
def test_term_waits_for_what_callbacks_change(order, strategy, tmp_path):
    expected = uninterrupted(strategy, ShrinkInSteps)
    # In the middle of the second epoch, and when that goes on.
    for tell in (TellAt(9), TellAt()):
        with pytest.raises(SystemExit):
            callbacks = order(Checkpoint(tmp_path, every_steps=100), ShrinkInSteps())
            train(strategy, arrays, [*callbacks, tell], make=plain)
    assert names(tmp_path) == ["step-00000010", "step-00000011"]

    callbacks = order(Checkpoint(tmp_path, every_steps=100), ShrinkInSteps())
    found = train(strategy, arrays, callbacks, make=plain)

    assert_equal(found, expected, strategy)
