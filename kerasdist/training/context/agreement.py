"""Compares what all workers must have in common before they train together."""

import contextlib
import hashlib
import inspect
import itertools
import json
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_fit, keras_layers
from kerasdist.support.text import short_list
from kerasdist.training.context import description, peers

# Arguments of `fit` that say what is trained and validated, and in how many steps.
_ARGUMENTS = (
    *("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "class_weight", "shuffle"),
    *("validation_split", "validation_batch_size", "validation_freq", "validation_steps"),
)
# Whose values are data: whether they are given.
_DATA_ARGUMENTS = ("sample_weight", "validation_data")
_COMPILED_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics")
_MOST_SHOWN = 4


def check_fit(
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    arguments: inspect.BoundArguments,
) -> None:
    """Compares a call of `fit` with those of the other workers.

    Args:
        model: That is trained.
        callbacks: Those that change the update.
        arguments: What `fit` was called with.

    Raises:
        ValueError: On every worker, where they differ; says in what, and what each of them has.
    """
    strategy = model.distribute_strategy
    if peers.count(strategy) > 1:
        _check(strategy, _facts(model, callbacks, arguments))


def _facts(
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    arguments: inspect.BoundArguments,
) -> dict[str, str]:
    """Returns what has to be equal, by the name that a message gives it."""
    arguments.apply_defaults()
    given = arguments.arguments
    facts = {name: description.describe(given.get(name)) for name in _ARGUMENTS}
    facts["the number of examples in `x`"] = _num_examples(given.get("x"))
    for name in _DATA_ARGUMENTS:
        facts[name] = "not given" if given.get(name) is None else "given"
    steps_per_execution = getattr(model, "steps_per_execution", None)
    facts["steps_per_execution"] = description.describe(steps_per_execution)
    named = ", ".join(type(each).__name__ for each in callbacks)
    facts["the list of callbacks of the update"] = named or "empty"
    settings = _settings(getattr(model, "optimizer", None))
    facts |= {name: str(value) for name, value in settings.items() if _is_plain(value)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of configs that nobody is going to save.
        facts |= _compiled(model) | _layers(model)
    # Without paths: Keras numbers names anew in each process.
    for index, variable in enumerate(model.weights):
        kind = "trained" if variable.trainable else "not trained"
        dtype = keras.backend.standardize_dtype(variable.dtype)
        facts[f"weight {index}"] = f"{dtype} {tuple(variable.shape)}, {kind}"
    return {name: description.shortened(text) for name, text in facts.items()}


def _num_examples(x: Any) -> str:
    """Returns how many examples arrays have; "unknown" of other data, such as a dataset."""
    leaves = keras.tree.flatten(x)
    lengths = {leaf.shape[0] for leaf in leaves if len(getattr(leaf, "shape", None) or ()) > 0}
    return "unknown" if len(lengths) != 1 else str(lengths.pop())


def _compiled(model: keras.Model) -> dict[str, str]:
    compiled = keras_fit.compile_arguments(model)
    return {name: description.describe(compiled.get(name)) for name in _COMPILED_ARGUMENTS}


def _layers(model: keras.Model) -> dict[str, str]:
    """Returns the classes of the layers, in their order, and then their settings."""
    held = keras_layers.layers_of(model)
    if any(_has_set_of_layers(layer) for layer in held):
        return {}  # They have another order in each process.
    # Configs of models hold the names of layers. Inputs are created where a model is first called.
    layers = [each for each in held if not isinstance(each, keras.Model | keras.layers.InputLayer)]
    named = {f"layer {index}": layer for index, layer in enumerate(layers)}
    classes = {name: type(layer).__name__ for name, layer in named.items()}
    settings = {
        f"{setting} of {name} ({classes[name]})": text
        for name, layer in named.items()
        for setting, text in description.settings_of(layer).items()
    }
    return classes | settings


def _has_set_of_layers(layer: keras.Layer) -> bool:
    return any(
        isinstance(each, keras.Layer)
        for held in vars(layer).values()
        if isinstance(held, set)
        for each in held
    )


def _settings(optimizer: Any) -> dict[str, Any]:
    settings = {}
    # What the user's own optimizer raises here: plain `fit` does not ask for its settings.
    with contextlib.suppress(Exception):
        settings = optimizer.get_config()
    named = {f"optimizer's {name}": value for name, value in settings.items() if name != "name"}
    return {"optimizer": type(optimizer).__name__, **named}


def _is_plain(value: object) -> bool:
    """Whether the text of a value is the same in each process: an object's may hold an address."""
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _check(strategy: tf.distribute.Strategy, facts: dict[str, str]) -> None:
    text = json.dumps(facts, sort_keys=True).encode()
    digests = peers.gather(strategy, np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    every = [json.loads(each) for each in _gathered(strategy, json.dumps(facts).encode())]
    told = [
        _told(name, [each.get(name, "nothing") for each in every], strategy)
        for name in dict.fromkeys(itertools.chain(*every))
        if len({each.get(name) for each in every}) > 1
    ]
    shown = short_list(told, _MOST_SHOWN, separator="; ")
    raise ValueError(
        f"The workers are about to train different things: {shown}. Run the same program with the "
        "same arguments on all of them, and build and compile the model in the same way."
    )


def _gathered(strategy: tf.distribute.Strategy, text: bytes) -> list[bytes]:
    # Compressed: a byte is sent as eight, and hundreds of layers have settings of the same names.
    sent = zlib.compress(text)
    # Padded to one length: what is gathered has one shape on all workers.
    length = int(peers.gather(strategy, np.array([len(sent)])).max())
    rows = peers.gather(strategy, np.frombuffer(sent.ljust(length), np.uint8))
    return [zlib.decompressobj().decompress(row.astype(np.uint8).tobytes()) for row in rows]


def _told(name: str, values: list[str], strategy: tf.distribute.Strategy) -> str:
    tasks = peers.tasks(strategy)
    each = ", ".join(f"{value} on {task}" for task, value in zip(tasks, values, strict=True))
    return f"{name} is {each}"
