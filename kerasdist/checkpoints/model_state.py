"""Reads and restores the state of a model: what Keras writes into a file, and the rest."""

import keras
import numpy as np

from kerasdist.checkpoints import variables
from kerasdist.checkpoints.saved import Saved
from kerasdist.private import keras_layers, keras_optimizers, keras_threads


def read(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns what Keras does not save; all workers must call it.

    Each replica may have values of its own.
    """
    apart = variables.weights_apart(model)
    return variables.read(model.distribute_strategy, apart | variables.variables_of(model))


def save_weights(model: keras.Model, file: str) -> None:
    """Writes weights and optimizer into a file, also of a model that no `fit` has built."""
    with keras_layers.taken_as_built(model):
        model.save_weights(file)


def restore(model: keras.Model, saved: Saved, *, with_optimizer: bool = True) -> None:
    """Gives a model what a checkpoint holds; without its optimizer, the weights alone."""
    if not with_optimizer:
        with keras_optimizers.without_optimizers(model):
            _load_weights(model, saved)
        return
    _load_weights(model, saved)
    if any(name.startswith("global seed/") for name in saved.arrays):
        keras_threads.make_global_seed_generator()
    named = variables.variables_of(model)
    if saved.record["step"] == 0:  # An epoch begins, and its metrics with it.
        named = {name: each for name, each in named.items() if not name.startswith("metric/")}
    arrays, metrics = saved.arrays, saved.record.get("metrics")
    if metrics is not None:  # Earlier versions did not name them.
        arrays = variables.with_metrics_in_order(arrays, metrics, variables.metrics_of(model))
    variables.write(model.distribute_strategy, named, arrays)


def learning_rates_of(model: keras.Model) -> list[float]:
    """Returns the learning rate of each optimizer."""
    return [float(each) for each in keras_optimizers.learning_rates_of(model)]


def _load_weights(model: keras.Model, saved: Saved):
    with saved.weights() as path, keras_layers.taken_as_built(model):
        model.load_weights(path)
    both = saved.record["variables"], variables.signature_of(model)
    if not variables.differences(*map(variables.weights_in, both)):
        variables.write(model.distribute_strategy, variables.weights_of(model), saved.arrays)
