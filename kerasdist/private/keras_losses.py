"""The losses of a model, those that its layers add, and the masks that both go by.

tests/private/test_keras_losses.py fails when one of these names moves. Written against Keras 3.12
to 3.15; `names.KERAS` stands where they differ.
"""

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import keras
from keras.src.losses import loss as keras_loss

from kerasdist.private import names


def compute_loss(model: keras.Model, x: Any, y: Any, predictions: Any, sample_weight: Any):
    """Returns the loss that Keras' own train_step differentiates, of predictions made before."""
    return model._compute_loss(x, y, predictions, sample_weight, training=True)


def replace_losses(compiled: Any, replace: Callable) -> None:
    """Puts what `replace` returns for each loss of a model's in its place.

    Args:
        compiled: Keras' object for the losses that a model is compiled with, which is built.
        replace: Called with a `keras.Loss`; returns what is called with the same arguments.
    """
    compiled._flat_losses = [
        each._replace(loss=replace(each.loss)) for each in compiled._flat_losses
    ]


def mask_of(tensor: Any) -> Any:
    """Returns the tensor with which a layer said which parts of its output count, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Says which parts of a tensor count, as a layer does of its output."""
    tensor._keras_mask = mask


def is_sum_over_batch(layer: keras.Layer) -> bool:
    """Whether Keras is calling `add_loss` of `layer` with a sum over the examples.

    That of an activity regularizer is one in Keras 3.12 and 3.13; later ones take the mean. Ask it
    in the function to which `add_loss` is routed.
    """
    if names.KERAS >= (3, 14):
        return False
    if layer.activity_regularizer is None:
        return False
    # Above what is routed stands who called `add_loss`: `call` of the layer may do so too, with
    # losses of the user's.
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_globals.get("__name__", "").startswith("kerasdist."):
        caller = caller.f_back
    called = inspect.unwrap(keras.layers.Layer.__call__)
    return caller is not None and caller.f_code is called.__code__


def masked_weights(sample_weight: Any, mask: Any):
    """Returns `sample_weight` with 0 where `mask` (or None) is False, broadcast as Keras does."""
    return keras_loss.apply_mask(sample_weight, mask, dtype="float32", reduction="sum")


def losses_added_by(layer: keras.Layer) -> list:
    """Returns the list in which Keras keeps what a layer has added with `add_loss`."""
    return layer._losses
