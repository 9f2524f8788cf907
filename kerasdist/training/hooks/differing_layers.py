"""Layers that on several replicas compute other than on one device, as they are made to."""

import keras

from kerasdist.private import keras_layers
from kerasdist.support.text import short_list


def unsynchronized(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the layers of `model` that normalize each replica with its own examples."""
    layers = keras_layers.batch_normalizations_of(model)
    return [layer for layer in layers if not layer.synchronized]


def notes_of_statistics(
    model: keras.Model, num_shares: int, *, shares: str = "replicas"
) -> tuple[str, ...]:
    """Returns what a person must know of the statistics before training; mostly nothing.

    Args:
        model: A built one.
        num_shares: How many gradients make an update.
        shares: What each of these is computed on.
    """
    layers = [layer.name for layer in unsynchronized(model) if layer.trainable]
    if num_shares == 1 or not layers:
        return ()
    return (
        f"Batch normalization ({short_list(layers, 3)}) uses the statistics of each of "
        f"{num_shares} {shares}, so training differs from one device. "
        "BatchNormalization(synchronized=True) uses those of the global batch.",
    )


def notes_of_random_numbers(
    model: keras.Model, num_shares: int, *, shares: str = "replicas"
) -> tuple[str, ...]:
    """Returns what a person must know of the model's random layers; nothing on one replica.

    Args: those of `notes_of_statistics`.
    """
    layers = [layer.name for layer in keras_layers.layers_with_random_numbers_of(model)]
    if num_shares == 1 or not layers:
        return ()
    return (
        f"Random layers ({short_list(layers, 3)}) draw different random numbers on each of "
        f"{num_shares} {shares}, so training differs from one device as with another seed.",
    )
