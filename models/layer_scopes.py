"""Layers as flags name them, and the expressions for the paths of their variables."""

import difflib
import re

import keras

from .usage_error import UsageError

_MOST_SHOWN = 20
_OF_SLIM = {"weights": "kernel", "biases": "bias"}


def patterns(flag: str, scopes: list[str], model: keras.Model) -> list[str]:
    """Returns for each scope the regular expression that its variables' paths match as a whole.

    Args:
        flag: For the message.
        scopes: Names of layers or of blocks of layers. They can be written as in slim, with slashes
            and after the scope of the net: "fc8", "InceptionV3/Mixed_7c/Branch_0". If there is no
            such layer, what names of variables begin with: "InceptionV3/Mixed_7".
        model: Whose variables.

    Raises:
        UsageError: The model trains no variable of a scope; lists its layers.
    """
    return [_pattern(flag, scope, model) for scope in scopes]


def _pattern(flag: str, scope: str, model: keras.Model) -> str:
    paths = [variable.path for variable in model.trainable_variables]
    texts = [text for text in (scope, scope.partition("/")[2]) if text]
    # Slim's scopes are prefixes, but conv1 does not mean conv10, too, if there is a conv1.
    for end in "([./].*)?", ".*":
        for text in texts:
            pattern = f"([^/]+/)?{_expression(text)}{end}"
            if any(re.fullmatch(pattern, path) for path in paths):
                return pattern
    layers = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    told = "Its layers are"
    if len(layers) > _MOST_SHOWN:
        told = f"The closest of its {len(layers)} layers are"
        layers = difflib.get_close_matches(scope.replace("/", "."), layers, n=5, cutoff=0)
    raise UsageError(
        f"{flag} names {scope!r}, but the net trains no variable there. {told} {', '.join(layers)}."
    )


def _expression(text: str) -> str:
    *parts, last = text.split("/")
    return "[./]".join(map(re.escape, [*parts, _OF_SLIM.get(last, last)]))
