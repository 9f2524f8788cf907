"""Whose hooks the steps of a single worker wait for."""

import functools
from typing import Any

import keras
import pytest

from kerasdist import callbacks
from kerasdist.training.hooks import batch_hooks


def do_nothing(*args, **kwargs):
    pass


act: Any = do_nothing  # Of any signature, so that it may override any hook.


class Prunes(keras.callbacks.Callback):
    on_train_batch_end = act


class ClipsInOldHook(keras.callbacks.Callback):
    on_batch_begin = act


class Saves(keras.callbacks.ModelCheckpoint):
    on_train_batch_end = act


class SavesLater(keras.callbacks.ModelCheckpoint):
    on_epoch_end = act


class Prints(callbacks.Throughput):
    def line(self, step, rate, loss):
        return str(step)


class Measures(callbacks.Throughput):
    on_train_batch_end = act


class GetsHook(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.on_batch_end = functools.partial(act)


WITH_A_HOOK = {
    "subclass": Prunes,
    "hook of older Keras": ClipsInOldHook,
    "subclass of one of Keras'": lambda: Saves("best.keras"),
    "subclass of one of ours": Measures,
    "hook of the object": GetsHook,
    "LambdaCallback": lambda: keras.callbacks.LambdaCallback(on_train_batch_begin=act),
    "in wrappers": lambda: callbacks.OnChief(callbacks.Every(Prunes(), steps=10)),
}
WITHOUT = {
    "LambdaCallback": lambda: keras.callbacks.LambdaCallback(
        on_epoch_end=act, on_test_batch_end=act
    ),
    "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(act),
    "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    "ProgbarLogger": keras.callbacks.ProgbarLogger,
    "TensorBoard": lambda: keras.callbacks.TensorBoard("events", update_freq=1),
    "subclass of one of Keras'": lambda: SavesLater("best.keras"),
    "subclass of one of ours": Prints,
    "Checkpoint": lambda: callbacks.Checkpoint("run", every_steps=1),
    "Summaries": lambda: callbacks.Summaries("run", every_steps=1),
    "in a wrapper": lambda: callbacks.Every(keras.callbacks.TensorBoard("events"), steps=1),
}


@pytest.mark.parametrize("name", WITH_A_HOOK)
def test_hook_of_the_users_own_is_found(name):
    assert batch_hooks.owners([WITH_A_HOOK[name]()])


@pytest.mark.parametrize("name", WITHOUT)
def test_no_other_callback_is_waited_for(name):
    assert batch_hooks.owners([WITHOUT[name]()]) == []


def test_owners_are_named_once_in_the_order_of_the_list():
    given = [Prunes(), keras.callbacks.History(), callbacks.OnChief(Saves("best.keras")), Prunes()]

    assert batch_hooks.owners(given) == ["Prunes", "Saves"]


def test_the_line_says_how_many_steps_and_why():
    alone, several = batch_hooks.describe(["Prunes"], 1), batch_hooks.describe(["A", "B"], 4)

    assert alone.startswith("Steps: one at a time, because Prunes has a hook for each batch, which")
    assert several.startswith("Steps: 4 per call, one call at a time, because A, B have a hook")
