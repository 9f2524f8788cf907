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
            such layer, what names of variables begin with, also as a regular expression:
            "InceptionV3/Mixed_7", "InceptionV3/Mixed_[67].*/Branch_0".
        model: Whose variables.

    Raises:
        UsageError: The model trains no variable of a scope; lists its layers.
    """
    found = [_pattern(scope, model) for scope in scopes]
    if None in found:
        raise UsageError(_describe_missing(flag, scopes[found.index(None)], model))
    return [pattern for pattern in found if pattern]


def patterns_of_some(flag: str, scopes: list[str], model: keras.Model) -> list[str]:
    """Returns the same without the scopes that the model lacks, after a line about each of them.

    A net for small images, for example, has no second classifier to leave out.
    """
    found = {scope: _pattern(scope, model) for scope in scopes}
    for scope, pattern in found.items():
        if pattern is None:
            print(f"Warning: {_describe_missing(flag, scope, model)} It leaves nothing out.")
    return [pattern for pattern in found.values() if pattern]


def _pattern(scope: str, model: keras.Model) -> str | None:
    paths = [variable.path for variable in model.trainable_variables]
    texts = [text for text in (scope, scope.partition("/")[2]) if text]
    # Slim's scopes are prefixes, but conv1 does not mean conv10, too, if there is a conv1.
    for expression, end in (_literal, "([./].*)?"), (_literal, ".*"), (_regular, ".*"):
        for text in texts:
            pattern = f"([^/]+/)?{expression(text)}{end}"
            if _matches_any(pattern, paths):
                return pattern
    return None


def _matches_any(pattern: str, paths: list[str]) -> bool:
    try:
        return any(re.fullmatch(pattern, path) for path in paths)
    except re.error:
        return False


def _literal(text: str) -> str:
    *parts, last = text.split("/")
    return "[./]".join(map(re.escape, [*parts, _OF_SLIM.get(last, last)]))


def _regular(text: str) -> str:
    """Returns slim's regular expression for the paths here, where blocks end with dots."""
    start, slash, last = text.rpartition("/")
    text = f"{start}{slash}{_OF_SLIM.get(last, last)}"
    text = re.sub(r"\[\^/\]|/", lambda found: "[./]" if found[0] == "/" else "[^./]", text)
    return f"({text})"


def _describe_missing(flag: str, scope: str, model: keras.Model) -> str:
    paths = [variable.path for variable in model.trainable_variables]
    layers = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
    told = "Its layers are"
    if len(layers) > _MOST_SHOWN:
        told = f"The closest of its {len(layers)} layers are"
        layers = difflib.get_close_matches(scope.replace("/", "."), layers, n=5, cutoff=0)
    return (
        f"{flag} names {scope!r}, but the net trains no variable there. {told} {', '.join(layers)}."
    )
