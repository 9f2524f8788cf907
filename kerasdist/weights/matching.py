"""Matches the values of a source with the variables of a model."""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from kerasdist import patterns
from kerasdist.private import keras_optimizers
from kerasdist.support.terminal import say
from kerasdist.support.text import short_list
from kerasdist.training.context import peers
from kerasdist.weights.renaming import Rule, renamed
from kerasdist.weights.result import WarmStart
from kerasdist.weights.sources import Value, read

# The last part of a name in TF-Slim, and those in Keras.
_OF_SLIM = {
    "weights": ("kernel",),
    "biases": ("bias",),
    "depthwise_weights": ("depthwise_kernel", "kernel"),  # SeparableConv2D, DepthwiseConv2D.
    "pointwise_weights": ("pointwise_kernel",),
}
_Found = list[tuple[keras.Variable, Value]]


def checked_patterns(argument: str, expressions: Any) -> tuple[str, ...] | None:
    """Returns a list of regular expressions as a tuple; None stays None.

    Raises:
        TypeError: It is a str, or holds something else.
        ValueError: One is not a regular expression.
    """
    if expressions is None:
        return None
    if isinstance(expressions, str) or not isinstance(expressions, Sequence):
        raise TypeError(
            f"`{argument}` must be a list of patterns over `variable.path`. Received: "
            f"{argument}={expressions!r}. Write {argument}=[{expressions!r}]."
        )
    for pattern in expressions:
        patterns.check_expression(argument, pattern)
    return tuple(expressions)


def restore(
    model: keras.Model,
    values: list[Value],
    *,
    name: Any,
    include: tuple[str, ...] | None,
    exclude: tuple[str, ...] | None,
    rules: list[Rule],
    ignore_missing: bool,
    reshape: bool,
) -> WarmStart:
    """Gives the variables of a model their values; see `warm_start`."""
    if not model.weights:
        raise ValueError(
            f"Model '{model.name}' has no variables yet. Build it first: give its layers an "
            "Input, call it once, or `model.build(input_shape)`."
        )
    wanted = _wanted(model, include, exclude)
    found = _found(model, wanted, renamed(values, rules))
    held = {id(variable) for variable, _ in found}
    missing = [variable.path for variable in wanted if id(variable) not in held]
    _check(found, missing, name, ignore_missing=ignore_missing, reshape=reshape)
    _assign(model, found)
    used, meant = {id(value.load) for _, value in found}, {id(variable) for variable in wanted}
    report = WarmStart(
        source=os.fspath(name),
        restored={variable.path: value.name for variable, value in found},
        left_alone=tuple(each.path for each in model.weights if id(each) not in meant),
        missing=tuple(missing),
        unused=tuple(value.name for value in values if id(value.load) not in used),
    )
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or peers.is_chief(strategy):
        say(str(report))
    return report


def _assign(model: keras.Model, found: _Found):
    arrays = [(variable, value.load()) for variable, value in found]  # Fails before it changes.
    for variable, array in arrays:
        variable.assign(array.reshape(variable.shape).astype(_numpy_dtype(variable)))
        keras_optimizers.begin_average_with(getattr(model, "optimizer", None), variable)


def _wanted(
    model: keras.Model, include: tuple[str, ...] | None, exclude: tuple[str, ...] | None
) -> list[keras.Variable]:
    def are_meant(argument: str, expressions: Sequence[str]):
        meant = set()
        for pattern in expressions:
            matching = {id(each) for each in model.weights if _matches(pattern, each, model)}
            if not matching:
                paths = [each.path for each in model.weights]
                raise ValueError(
                    f"`{argument}` holds {pattern!r}, which matches no variable. Closest paths: "
                    f"{patterns.closest(pattern, paths)}."
                )
            meant |= matching
        return meant

    included = None if include is None else are_meant("include", include)
    excluded = are_meant("exclude", exclude or ())
    return [
        each
        for each in model.weights
        if (included is None or id(each) in included) and id(each) not in excluded
    ]


def _matches(pattern: str, variable: keras.Variable, model: keras.Model) -> bool:
    return any(
        re.fullmatch(pattern, path) or path.startswith(f"{pattern.rstrip('/')}/")
        for path in _paths(variable, model)
    )


def _paths(variable: keras.Variable, model: keras.Model) -> list[str]:
    return list(dict.fromkeys([variable.path, variable.path.removeprefix(f"{model.name}/")]))


def _found(
    model: keras.Model, wanted: list[keras.Variable], pairs: list[tuple[Value, str]]
) -> _Found:
    """Returns the variables that there is a value for, with the value."""
    by_name: dict[str, Value] = {}
    for value, name in pairs:
        for each in (name, *_as_keras(name)):
            by_name.setdefault(each, value)
    by_rest = {name.partition("/")[2]: value for name, value in by_name.items() if "/" in name}
    places = _places(model) if any(value.place for value, _ in pairs) else {}
    by_place = _by_place(places, pairs)
    names_in_file: dict[int, list[str]] = {}
    for place, (variable, readable) in places.items():
        names_in_file.setdefault(id(variable), []).extend([readable, place])
    found = []
    for variable in wanted:
        paths, rest = _paths(variable, model), _without_first(variable)
        in_file = names_in_file.get(id(variable), [])
        candidates = (
            *(by_name.get(name) for name in (*paths, *in_file)),
            *(by_place.get(name) for name in in_file),
            *(by_name.get(name) for name in rest),
            *(by_rest.get(name) for name in (*paths, *rest)),
        )
        value = next((each for each in candidates if each is not None), None)
        if value is not None:
            found.append((variable, value))
    return found


def _by_place(
    places: Mapping[str, tuple[keras.Variable, str]], pairs: list[tuple[Value, str]]
) -> dict[str, Value]:
    """Returns values by their places, if the file is one of a model with the same places.

    What was renamed is meant by its name.
    """
    shapes_here = {place: tuple(variable.shape) for place, (variable, _) in places.items()}
    shapes_there = {value.place: value.shape for value, _ in pairs if value.place}
    if shapes_here != shapes_there:
        return {}
    return {value.place: value for value, name in pairs if name == value.name}


def _as_keras(name: str) -> list[str]:
    start, slash, last = name.rpartition("/")
    return [start + slash + each for each in _OF_SLIM.get(last, ())]


def _without_first(variable: keras.Variable) -> list[str]:
    _, slash, rest = variable.path.partition("/")
    return [rest] if slash and "/" in rest else []


def _places(model: keras.Model) -> dict[str, tuple[keras.Variable, str]]:
    """Returns the variable, and its name with those of layers, for each place in Keras' files.

    The model is saved with a number for each variable in place of its values.
    """
    variables: list[keras.Variable] = []

    def number_of(variable: keras.Variable):
        variables.append(variable)
        return np.int64(len(variables) - 1)

    with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
        path = os.path.join(folder, "numbers.weights.h5")
        with keras_optimizers.saving_instead(model, number_of):
            model.save_weights(path)
        found = read(path).values
    return {
        value.place: (variables[int(value.load())], value.name)
        for value in found
        if int(value.load()) < len(variables)
    }


def _check(
    found: _Found, missing: list[str], name: Any, *, ignore_missing: bool, reshape: bool
) -> None:
    if not found:
        raise ValueError(
            f"Nothing in {name!r} is for a variable of the model, so nothing would be restored. "
            f"The variables are {short_list(missing, 5) or 'all left out'}. Use `rename` to say "
            "which names are theirs."
        )
    wrong = [
        f"{variable.path}: {tuple(variable.shape)} in the model, {value.shape} in the source"
        for variable, value in found
        if not _fits(variable, value, reshape=reshape)
    ]
    if wrong:
        raise ValueError(
            f"Shapes in {name!r} differ: {'; '.join(wrong[:5])}. Leave these variables out with "
            "`exclude`, or reshape values of the same size with reshape=True."
        )
    if missing and not ignore_missing:
        raise ValueError(
            f"{name!r} lacks {short_list(missing, 5)}. Leave them out with `exclude`, name them "
            "with `rename`, or keep their present values with ignore_missing=True."
        )


def _fits(variable: keras.Variable, value: Value, *, reshape: bool) -> bool:
    if tuple(variable.shape) == value.shape:
        return True
    return reshape and int(np.prod(variable.shape)) == int(np.prod(value.shape))


def _numpy_dtype(variable: keras.Variable):
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if dtype == "bfloat16" else dtype
