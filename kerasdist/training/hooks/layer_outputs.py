"""Hands on what layers give while a model runs or is traced."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_layers
from kerasdist.support.replaced_method import method_replaced
from kerasdist.support.unique import by_unique_name


@contextlib.contextmanager
def watched(layers: list, note: Callable) -> Generator[None]:
    """Calls `note(layer, output)` whenever one of `layers` has been called inside."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(method_replaced(layer, "call", _call, layer, note))
        yield


def _call(call: Callable, layer: keras.Layer, note: Callable, *args: Any, **kwargs: Any):
    output = call(*args, **kwargs)
    note(layer, output)
    return output


def by_name(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Returns the layers of a model by their names; those of models inside it, too.

    What is inside of another layer does not count. Of layers with one name all but the first get a
    number.
    """
    return by_unique_name(_layers_of(model), lambda layer: layer.name)


def _layers_of(model: keras.Model):
    for layer in keras_layers.layers_beside(model):
        if isinstance(layer, keras.Model):
            yield from _layers_of(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


def first_number_of(output: Any):
    """Returns the first tensor of floating-point numbers in what a layer gives; None for none."""
    leaves = [leaf for leaf in keras.tree.flatten(output) if isinstance(leaf, tf.Tensor)]
    return next((leaf for leaf in leaves if leaf.dtype.is_floating), None)


def is_reachable(tensor) -> bool:
    """Whether a tensor can be used in the graph that is traced: it is of it, or of one around."""
    if not tf.is_symbolic_tensor(tensor):
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if graph is tensor.graph:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
