"""Names of variables in slim's checkpoints, as paths of variables in the nets here.

InceptionV3/Mixed_5b/Branch_0/Conv2d_0a_1x1/weights is of the layer
Mixed_5b.Branch_0.Conv2d_0a_1x1: without the net's scope, and with dots for slashes.
"""

import re
from collections.abc import Iterable


def are_slims(names: Iterable[str]) -> bool:
    """Returns whether names are those of a checkpoint of slim."""
    return any(name.endswith("/weights") for name in names)


def _path(match: re.Match) -> str:
    return f"{match[1].replace('/', '.')}/{match[2]}"


# What `kerasdist.warm_start` is to be given as `rename` for slim's names.
RENAME = [(r"^[^/]+/(.+)/([^/]+)$", _path)]
