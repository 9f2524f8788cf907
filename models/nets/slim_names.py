"""Names of variables in slim's checkpoints, as paths of variables in the nets here.

InceptionV3/Mixed_5b/Branch_0/Conv2d_0a_1x1/weights is of the layer
Mixed_5b.Branch_0.Conv2d_0a_1x1: without the net's scope, and with dots for slashes.
"""

import re
from collections.abc import Iterable

# Of nets whose names there are others.
_SCOPES = {
    "cifarnet": "CifarNet",
    "inception_resnet_v2": "InceptionResnetV2",
    "inception_v1": "InceptionV1",
    "inception_v2": "InceptionV2",
    "inception_v3": "InceptionV3",
    "inception_v4": "InceptionV4",
    "lenet": "LeNet",
    "mobilenet_v1": "MobilenetV1",
    "mobilenet_v2": "MobilenetV2",
}
_KINDS = {
    "kernel": "weights",
    "bias": "biases",
    "depthwise_kernel": "depthwise_weights",
    "pointwise_kernel": "pointwise_weights",
}


def are_slims(names: Iterable[str]) -> bool:
    """Returns whether names are those of a checkpoint of slim."""
    return any(name.endswith("/weights") for name in names)


def name_of(net: str, path: str) -> str:
    """Returns slim's name of a variable.

    Args:
        net: The name of a net with slim's layers.
        path: Of the variable here.
    """
    layer, _, kind = path.rpartition("/")
    kinds = _KINDS | ({"kernel": "depthwise_weights"} if layer.endswith("depthwise") else {})
    base = re.sub(r"(mobilenet_v\d)_\d+", r"\1", net)  # Of all widths.
    return f"{_SCOPES.get(base, base)}/{layer.replace('.', '/')}/{kinds.get(kind, kind)}"


def _path(match: re.Match) -> str:
    return f"{match[1].replace('/', '.')}/{match[2]}"


# What `kerasdist.warm_start` is to be given as `rename` for slim's names.
RENAME = [(r"^[^/]+/(.+)/([^/]+)$", _path)]
