"""The nets: one table, name to row. A new net is an import and a row.

model = nets.build("lenet", num_classes=10, weight_decay=4e-5)
"""

import keras

from .. import own_parts
from ..legacy import ABSENT_NETS as ABSENT
from ..usage_error import UsageError, check_name
from . import (
    alexnet,
    applications,
    cifarnet,
    inception_resnet_v2,
    inception_v1,
    inception_v2,
    inception_v3,
    inception_v4,
    lenet,
    mobilenet,
    resnet,
    vgg,
)
from .net import Net

NETS = {
    "alexnet_v2": Net(alexnet.alexnet_v2, 224, "vgg"),
    "cifarnet": Net(cifarnet.build, 32, "cifarnet"),
    "inception_resnet_v2": Net(inception_resnet_v2.build, 299, "inception"),
    "inception_v1": Net(inception_v1.build, 224, "inception"),
    "inception_v2": Net(inception_v2.build, 224, "inception"),
    "inception_v3": Net(inception_v3.build, 299, "inception"),
    "inception_v4": Net(inception_v4.build, 299, "inception"),
    "lenet": Net(lenet.build, 28, "lenet", channels=1),
    "mobilenet_v1": Net(mobilenet.mobilenet_v1, 224, "inception"),
    "mobilenet_v1_025": Net(mobilenet.mobilenet_v1_025, 224, "inception"),
    "mobilenet_v1_050": Net(mobilenet.mobilenet_v1_050, 224, "inception"),
    "mobilenet_v1_075": Net(mobilenet.mobilenet_v1_075, 224, "inception"),
    "mobilenet_v2": Net(mobilenet.mobilenet_v2, 224, "inception"),
    "mobilenet_v2_035": Net(mobilenet.mobilenet_v2_035, 224, "inception"),
    "mobilenet_v2_140": Net(mobilenet.mobilenet_v2_140, 224, "inception"),
    **{
        name: Net(build, size, "inception", has_slims_layers=False)
        for name, build, size in (
            ("mobilenet_v3_large", applications.mobilenet_v3_large, 224),
            ("mobilenet_v3_large_minimalistic", applications.mobilenet_v3_large_minimalistic, 224),
            ("mobilenet_v3_small", applications.mobilenet_v3_small, 224),
            ("mobilenet_v3_small_minimalistic", applications.mobilenet_v3_small_minimalistic, 224),
            ("nasnet_large", applications.nasnet_large, 331),
            ("nasnet_mobile", applications.nasnet_mobile, 224),
        )
    },
    "overfeat": Net(alexnet.overfeat, 231, "vgg"),
    "resnet_v1_101": Net(resnet.resnet_v1_101, 224, "vgg"),
    "resnet_v1_152": Net(resnet.resnet_v1_152, 224, "vgg"),
    "resnet_v1_200": Net(resnet.resnet_v1_200, 224, "vgg"),
    "resnet_v1_50": Net(resnet.resnet_v1_50, 224, "vgg"),
    "resnet_v2_101": Net(resnet.resnet_v2_101, 224, "vgg"),
    "resnet_v2_152": Net(resnet.resnet_v2_152, 224, "vgg"),
    "resnet_v2_200": Net(resnet.resnet_v2_200, 224, "vgg"),
    "resnet_v2_50": Net(resnet.resnet_v2_50, 224, "vgg"),
    "vgg_16": Net(vgg.vgg_16, 224, "vgg"),
    "vgg_19": Net(vgg.vgg_19, 224, "vgg"),
    "vgg_a": Net(vgg.vgg_a, 224, "vgg"),
}
CHOICE = (
    f"One of {', '.join(sorted(NETS))}; or your own: my_package.nets:build. Slim's "
    f"{', '.join(sorted(ABSENT))} are not there."
)


def find(name: str) -> Net:
    """Returns the row of `name`, which may be the module and function of a net of one's own.

    As in slim, such a function may have the attribute default_image_size.

    Raises:
        UsageError: There is no such net. The message lists the valid names, or says why not.
    """
    if own_parts.is_own(name):
        function = own_parts.find("--model_name", name)
        size = getattr(function, "default_image_size", 224)
        return Net(function, size, "inception", has_slims_layers=False)
    if name in ABSENT:
        raise UsageError(f"--model_name {name!r} is not available: {ABSENT[name]}.")
    check_name("--model_name", name, NETS)
    return NETS[name]


def build(
    name: str,
    *,
    num_classes: int,
    weight_decay: float,
    image_size: int | None = None,
    channels: int | None = None,
    synchronized: bool = True,
) -> keras.Model:
    """Builds the net `name` with initial weights. The model has that name, and returns logits.

    Args:
        name: A key of `NETS`, or the module and function of a net of one's own.
        num_classes: The number of logits.
        weight_decay: As in slim, adds `weight_decay * sum(w ** 2) / 2` to the loss for every
            kernel that slim's net regularizes.
        image_size: Height and width in pixels; None is the net's default.
        channels: Channels of the images; None is the net's default.
        synchronized: Whether batch normalization uses the statistics of the global batch, or, as in
            slim, those of the batch that each gradient is computed from.

    Returns:
        A model: images float32 [batch, image_size, image_size, channels] to logits
        [batch, num_classes], where batch is per replica.
    """
    net = find(name)
    model = net.build(
        num_classes=num_classes,
        image_size=image_size or net.image_size,
        channels=channels or net.channels,
        weight_decay=weight_decay,
    )
    model.name = name.replace(":", ".")  # TensorFlow takes no colon.
    if not synchronized:
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.synchronized = False
    return model
