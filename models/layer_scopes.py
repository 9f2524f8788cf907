"""Layers as flags name them, and the expressions for the paths of their variables."""

import re

import keras

from models.usage_error import UsageError


def patterns(flag: str, scopes: list[str], model: keras.Model) -> list[str]:
    """Return for each scope the regular expression that its variables' paths match as a whole.

    Args:
        flag: for the message.
        scopes: names of layers, or of blocks of them: "logits", "block1/conv1".
        model: whose variables.

    Raises:
        UsageError: the model trains no variable of a scope; lists its layers.
    """
    paths = [variable.path for variable in model.trainable_variables]
    found = [rf"([^/]+/)?{re.escape(scope)}(/.*)?" for scope in scopes]
    for scope, pattern in zip(scopes, found, strict=True):
        if not any(re.fullmatch(pattern, path) for path in paths):
            layers = dict.fromkeys(path.rpartition("/")[0] for path in paths)
            raise UsageError(
                f"{flag} names {scope!r}, of which the net has no variable. Its layers are "
                f"{', '.join(layers)}."
            )
    return found
