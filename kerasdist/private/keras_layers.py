"""The layers of a model: which ones it has, and whether they are built.

tests/private/test_keras_layers.py fails when one of these names moves. Written against Keras 3.12
to 3.15.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import keras

from kerasdist.support import memory


def layers_of(layer: keras.Layer) -> list[keras.layers.Layer]:
    """Returns a layer and all those inside it."""
    return list(layer._flatten_layers())


def layers_beside(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the layers that a model holds itself, and not those that they hold."""
    return list(model._flatten_layers(include_self=False, recursive=False))


def batch_normalizations_of(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the BatchNormalization layers of `model`, those of nested models included."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def layers_with_random_numbers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns what draws random numbers in training, the model itself and nested ones included."""
    # The cells of LSTM and GRU hold a generator also where they drop nothing.
    return [
        layer
        for layer in layers_of(model)
        if layer._seed_generators
        and (getattr(layer, "dropout", 1) or getattr(layer, "recurrent_dropout", 0))
    ]


def seed_generators_of(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns what a model in training draws its random numbers from, nested models included."""
    layers = layers_with_random_numbers_of(model)
    return [generator for layer in layers for generator in layer._seed_generators]


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the axes over which a layer takes its statistics: all but that of the channels."""
    return layer._reduction_axes


def is_built(model: keras.Model) -> bool:
    """Whether the layers of `model` have made their variables.

    A model whose train_step calls its layers and never itself stays unbuilt. So does a layer that
    no step calls, such as the lookup inside of a TextVectorization that only the data uses.
    """
    layers = model._flatten_layers(include_self=False)
    has_none_of_its_own = bool(layers) and type(model).build is keras.Model.build
    unused = memory.of_model(model).unused_layers
    return (model.built or has_none_of_its_own) and all(
        layer.built or id(layer) in unused for layer in layers
    )


def note_unused_layers(model: keras.Model) -> None:
    """Notes which layers are not built after all of `model` was called: nothing calls them."""
    layers = model._flatten_layers(include_self=False)
    unused = frozenset(id(layer) for layer in layers if not layer.built)
    memory.of_model(model).unused_layers = unused


@contextlib.contextmanager
def taken_as_built(model: keras.Model) -> Generator[None]:
    """Lets Keras save and load a model whose layers are built, also if nobody ever calls it."""
    before = model.built
    try:
        model.built = before or is_built(model)
        yield
    finally:
        model.built = before


def build_from_spec(model: keras.Model, spec: Any) -> None:
    """Creates the variables of `model` and its metrics from shapes alone.

    Not those of its optimizer: Keras alone makes them in the first step that trains, and files that
    are loaded before do not reach them.
    """
    optimizer = model.optimizer
    is_hidden = optimizer is not None and not optimizer.built
    try:
        if is_hidden:
            optimizer.built = True
        model._symbolic_build(data_batch=spec)
        note_unused_layers(model)
    finally:
        if is_hidden:
            optimizer.built = False
