"""A net that is trained with a second, smaller classifier in the middle."""

from typing import Any

import keras
from keras import layers

from .style import Style

WEIGHT = 0.4  # Of the second one's loss, as in slim.
_SMALLEST = 5  # Height and width that its first layer takes.


class WithAuxiliary(keras.Model):
    """Images to two kinds of logits; its loss is the first's plus 0.4 times the second's.

    Metrics are of the first only; the log "auxiliary_loss" is what the second adds to the loss.
    `classifier` is the net without the second, with the same weights: it is what is saved after
    training.

    Args:
        images: The input.
        logits: Of the classifier [batch, classes].
        auxiliary: Of the second one [batch, classes].
    """

    def __init__(
        self, images: keras.KerasTensor, logits: keras.KerasTensor, auxiliary: keras.KerasTensor
    ):
        super().__init__(images, [logits, auxiliary])
        self._logits = (images, logits)
        self._auxiliary_loss = keras.metrics.Mean(name="auxiliary_loss")

    @property
    def classifier(self) -> keras.Model:
        """The model of images to logits."""
        return keras.Model(*self._logits, name=self.name)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ):
        logits, auxiliary = y_pred
        loss = super().compute_loss(x, y, logits, sample_weight, training)
        added = WEIGHT * self.loss(y, auxiliary, sample_weight)
        # Weighed as Keras weighs the mean of the loss.
        self._auxiliary_loss.update_state(added, sample_weight=keras.ops.shape(logits)[0])
        return loss + added

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None):
        return super().compute_metrics(x, y, y_pred[0], sample_weight)


def with_auxiliary(
    images: keras.KerasTensor, logits: keras.KerasTensor, auxiliary: keras.KerasTensor | None
) -> keras.Model:
    """Returns the model; without the second one if that is None."""
    if auxiliary is None:
        return keras.Model(images, logits)
    return WithAuxiliary(images, logits, auxiliary)


def classifier_of(model: keras.Model) -> keras.Model:
    """Returns the part of a net that gives its logits: all of it if there is no second one."""
    return model.classifier if isinstance(model, WithAuxiliary) else model


def features(
    x: keras.KerasTensor, style: Style, *, stddev: float | None = None, names: tuple[str, str, str]
):
    """Returns what the second classifier sees, [batch, 1, 1, 768]; None for too small images.

    Args:
        x: Features in the middle of the net, with height and width of at least 5.
        style: Of the net.
        stddev: Of the first values of the large convolution; None is the style's.
        names: Of the mean and the two convolutions, below AuxLogits; the last one may hold "{}x{}"
            for its height and width.
    """
    if min(x.shape[1:3]) < _SMALLEST:
        return None
    pool, small, large = (f"AuxLogits.{name}" for name in names)
    x = layers.AveragePooling2D(5, strides=3, name=pool)(x)
    x = style.conv(x, small, 128, 1)
    size = x.shape[1:3]
    return style.conv(x, large.format(*size), 768, size, padding="valid", stddev=stddev)
