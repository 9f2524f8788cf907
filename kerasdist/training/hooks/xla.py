"""What XLA compiles of a training: which part of its steps, and why no more.

    xla.reason_against(model, model.train_step)     # None, or why XLA compiles nothing of them.

On one device it compiles the whole step. Replicas meet in a step, which XLA cannot compile: it
compiles what each of several computes by itself, where all of that comes before they meet.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_layers, scopes
from kerasdist.support import memory
from kerasdist.support.terminal import announce
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, traits


def resolve_auto(original: Callable, model: keras.Model) -> bool:
    """Stands before what makes a bool of `jit_compile="auto"`, for a model of our strategies.

    It is what Keras makes of it without a strategy, and off where XLA could compile nothing.
    """
    notes = memory.of_model(model)
    if traits.has_remote_variables(model.distribute_strategy):
        notes.auto_xla = "the variables are on parameter servers"
        return False
    with scopes.strategy_hidden(model):
        is_on = original(model)
    devices = tf.config.list_physical_devices()
    if all(device.device_type == "CPU" for device in devices):
        notes.auto_xla = "no GPU"
    elif is_on:
        notes.auto_xla = "there is a GPU"
    else:
        notes.auto_xla = "a layer does not support it, or operations are to be deterministic"
    return is_on


def describe(model: keras.Model) -> str:
    """Returns what XLA compiles of the training of a compiled model, for the plan."""
    chosen = memory.of_model(model).auto_xla
    why = f' ("auto": {chosen})' if chosen else ""
    if not model.jit_compile:
        return f"off{why}"
    reason = reason_against(model, model.train_step)
    if reason is not None:
        return f"off: {reason}"
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return f"on{why}"
    return f"on{why}, for what each replica computes by itself: loss and gradient"


def reason_against(model: keras.Model, step: Callable) -> str | None:
    """Returns why XLA compiles nothing of the steps of a model; None where it does.

    Args:
        model: A compiled one of our strategies, with `jit_compile=True`.
        step: Its train_step or test_step.
    """
    strategy = model.distribute_strategy
    if traits.has_remote_variables(strategy):
        return "XLA cannot compile a step whose variables are on another device"
    if strategy.num_replicas_in_sync == 1:
        return None
    if not custom_parts.is_original_step(step):
        return "replicas may meet anywhere in a step that is not Keras' own"
    return _reason_of_training(model) if step == model.train_step else None


def _reason_of_training(model: keras.Model) -> str | None:
    if custom_parts.custom_applies_of(model):
        return "replicas meet in an optimizer that applies gradients in a way of its own"
    layers = keras_layers.batch_normalizations_of(model)
    names = [layer.name for layer in layers if layer.synchronized and layer.trainable]
    if names:
        return f"replicas meet in synchronized batch normalizations ({short_list(names, 3)})"
    return None


def tell_that_off(model: keras.Model, reason: str) -> None:
    """Says that XLA compiles nothing: a warning where a program has asked for it, else a line."""
    number = model.distribute_strategy.num_replicas_in_sync
    is_remote = traits.has_remote_variables(model.distribute_strategy)
    where = "with parameter servers" if is_remote else f"on {number} replicas"
    if memory.of_model(model).auto_xla is None:
        warn(
            f"`jit_compile=True` has no effect {where}: {reason}. The model runs without XLA, "
            "with the same results."
        )
    elif peers.is_chief(model.distribute_strategy):
        announce(f"XLA: off {where}, {reason}.")
