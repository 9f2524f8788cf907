"""What the layers of one net have in common, in the place of slim's argument scopes."""

from dataclasses import dataclass

import keras
from keras import layers

from .weight_decay import slim_l2


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How the convolutions of a net are made.

    Layers bear slim's scopes, with a dot for each slash. Batch normalization uses the statistics of
    the global batch, so that many devices give the weights of one.

    Args:
        weight_decay: Of kernels, in slim's scale; depthwise kernels are free, as in slim.
        momentum: Of the averages of batch normalization.
        epsilon: What batch normalization adds to the variance.
        scale: Whether batch normalization multiplies, too.
        stddev: Of a kernel's first values, which are drawn from a truncated normal; None is He's.
        activation: Behind batch normalization.
        biases_decay: Whether the weight decay is of biases, too.
    """

    weight_decay: float
    momentum: float
    epsilon: float = 0.001
    scale: bool = False
    stddev: float | None = None
    activation: str = "relu"
    biases_decay: bool = False

    def conv(
        self,
        x: keras.KerasTensor,
        name: str,
        filters: int,
        size: int | tuple[int, int],
        *,
        strides: int = 1,
        padding: str = "same",
        stddev: float | None = None,
        activate: bool = True,
    ):
        """Adds a convolution without bias, batch normalization and, unless not, the activation."""
        layer = self._conv(name, filters, size, strides, padding, stddev, use_bias=False)
        x = self.normalize(layer(x), f"{name}.BatchNorm")
        return self.activate(x, name) if activate else x

    def plain_conv(
        self,
        x: keras.KerasTensor,
        name: str,
        filters: int,
        size: int | tuple[int, int] = 1,
        *,
        strides: int = 1,
        padding: str = "same",
        stddev: float | None = None,
    ):
        """Adds a convolution with bias, and nothing behind it."""
        return self._conv(name, filters, size, strides, padding, stddev, use_bias=True)(x)

    def _conv(
        self,
        name: str,
        filters: int,
        size: int | tuple[int, int],
        strides: int,
        padding: str,
        stddev: float | None,
        *,
        use_bias: bool,
    ):
        return layers.Conv2D(
            filters,
            size,
            strides=strides,
            padding=padding,
            use_bias=use_bias,
            kernel_initializer=self.initializer(stddev),
            name=name,
            **self._regularizers(),
        )

    def depthwise_conv(self, x: keras.KerasTensor, name: str, size: int, *, strides: int = 1):
        """Adds a depthwise convolution, batch normalization and the activation."""
        x = layers.DepthwiseConv2D(
            size,
            strides=strides,
            padding="same",
            use_bias=False,
            depthwise_initializer=self.initializer(),
            name=name,
        )(x)
        return self.activate(self.normalize(x, f"{name}.BatchNorm"), name)

    def normalize(self, x: keras.KerasTensor, name: str):
        """Adds batch normalization under the whole of `name`."""
        return layers.BatchNormalization(
            momentum=self.momentum,
            epsilon=self.epsilon,
            scale=self.scale,
            synchronized=True,
            name=name,
        )(x)

    def activate(self, x: keras.KerasTensor, name: str):
        """Adds the activation of a layer."""
        return layers.Activation(self.activation, name=f"{name}.activation")(x)

    def logits(
        self,
        x: keras.KerasTensor,
        name: str,
        num_classes: int,
        *,
        keep: float | None = None,
        stddev: float | None = None,
    ):
        """Adds the last layers: the mean of all places, dropout and a convolution with bias.

        Args:
            x: The features [batch, height, width, channels].
            name: Of the convolution; dropout is named after what comes before its last dot.
            num_classes: The number of logits.
            keep: The share that dropout keeps; None means no dropout.
            stddev: Of the kernel's first values; None is the style's.

        Returns:
            Logits [batch, classes].
        """
        x = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}.mean")(x)
        if keep is not None:
            x = layers.Dropout(1 - keep, name=f"{name}.dropout")(x)
        x = self.plain_conv(x, name, num_classes, stddev=stddev)
        return layers.Flatten(name=f"{name}.squeeze")(x)

    def dense(self, x: keras.KerasTensor, name: str, num_classes: int):
        """Adds a last layer, with slim's initializer for dense ones."""
        kernel_initializer = keras.initializers.GlorotUniform()
        layer = layers.Dense(
            num_classes, kernel_initializer=kernel_initializer, name=name, **self._regularizers()
        )
        return layer(x)

    def _regularizers(self) -> dict[str, keras.regularizers.Regularizer | None]:
        return {
            "kernel_regularizer": slim_l2(self.weight_decay),
            "bias_regularizer": slim_l2(self.weight_decay) if self.biases_decay else None,
        }

    def initializer(self, stddev: float | None = None) -> keras.initializers.Initializer:
        """Returns a new initializer: one object would give every layer the same numbers."""
        stddev = self.stddev if stddev is None else stddev
        if stddev is None:
            return keras.initializers.HeNormal()
        return keras.initializers.TruncatedNormal(stddev=stddev)
