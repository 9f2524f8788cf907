"""Nets of keras.applications under their slim names, made fit for training from scratch here.

keras.applications takes no weight decay and keeps batch statistics per replica. Each model is
therefore cloned once before it has seen data, with two changes:

- kernels of convolutions and dense layers are regularized; depthwise kernels are not, as in slim;
- batch normalization uses the statistics of the global batch, so that all replicas agree and many
  devices give the weights of one.

NASNets come without slim's second classifiers and drop-path. None reads slim's checkpoints.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from .weight_decay import slim_l2


def nasnet_mobile(**kwargs: Any) -> keras.Model:
    """Returns NASNet-A for small devices."""
    return _build(keras.applications.NASNetMobile, **kwargs)


def nasnet_large(**kwargs: Any) -> keras.Model:
    """Returns NASNet-A as it won on ImageNet."""
    return _build(keras.applications.NASNetLarge, **kwargs)


def _mobilenet_v3(
    application: Callable[..., keras.Model], *, minimalistic: bool = False, **kwargs: Any
) -> keras.Model:
    """Returns MobileNet v3; a minimalistic one has neither squeeze-and-excite nor hard swish."""
    made = functools.partial(
        application,
        minimalistic=minimalistic,
        include_preprocessing=False,  # Images come from -1 to 1, as slim's do.
    )
    return _build(made, **kwargs)


mobilenet_v3_large = functools.partial(_mobilenet_v3, keras.applications.MobileNetV3Large)
mobilenet_v3_large_minimalistic = functools.partial(mobilenet_v3_large, minimalistic=True)
mobilenet_v3_small = functools.partial(_mobilenet_v3, keras.applications.MobileNetV3Small)
mobilenet_v3_small_minimalistic = functools.partial(mobilenet_v3_small, minimalistic=True)


def _build(
    application: Callable[..., keras.Model],
    *,
    num_classes: int,
    image_size: int,
    channels: int,
    weight_decay: float,
) -> keras.Model:
    model = application(
        weights=None,
        input_shape=(image_size, image_size, channels),
        classes=num_classes,
        classifier_activation=None,
    )

    def clone(layer: layers.Layer) -> layers.Layer:
        config = layer.get_config()
        # DepthwiseConv2D is not a Conv2D in Keras 3: its kernel stays free.
        if isinstance(layer, layers.Conv2D | layers.Dense):
            config["kernel_regularizer"] = slim_l2(weight_decay)
        if isinstance(layer, layers.BatchNormalization):
            config["synchronized"] = True
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=clone)
