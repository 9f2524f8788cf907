"""The nets: one table, name to row. A new net is an import and a row.

model = nets.build("lenet", num_classes=10, weight_decay=4e-5)
"""

import keras

from models.nets import applications, cifarnet, lenet
from models.nets.net import Net
from models.usage_error import check_name

# TODO: give the last three the preprocessing "inception" or "vgg" when models/preprocessing has it.
NETS = {
    "cifarnet": Net(build=cifarnet.build, image_size=32, channels=3, preprocessing="cifarnet"),
    "lenet": Net(build=lenet.build, image_size=28, channels=1, preprocessing="lenet"),
    "inception_v3": Net(
        build=applications.inception_v3, image_size=299, channels=3, preprocessing="cifarnet"
    ),
    "mobilenet_v2": Net(
        build=applications.mobilenet_v2, image_size=224, channels=3, preprocessing="cifarnet"
    ),
    "resnet_v1_50": Net(
        build=applications.resnet_v1_50, image_size=224, channels=3, preprocessing="cifarnet"
    ),
}


def find(name: str) -> Net:
    """Return the row of `name`.

    Raises:
        UsageError: there is no such net; the message lists those there are.
    """
    check_name("--model_name", name, NETS)
    return NETS[name]


def build(
    name: str,
    *,
    num_classes: int,
    weight_decay: float,
    image_size: int | None = None,
    channels: int | None = None,
) -> keras.Model:
    """Build the net `name`, with fresh weights; it is named so too, and gives logits.

    Args:
        name: a key of `NETS`.
        num_classes: the number of logits.
        weight_decay: of slim's kind: adds `weight_decay * sum(w ** 2) / 2` to the loss for every
            kernel that the net's slim original regularises.
        image_size: height and width in pixels; None is the net's default.
        channels: of the images; None is the net's default.

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
    model.name = name
    return model
