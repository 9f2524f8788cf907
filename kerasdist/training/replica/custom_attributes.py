"""Keep and put back what custom models, layers and metrics have in Python: counts, lists, arrays.

A trial runs their methods, and what they note meanwhile did not happen. Variables get their
values back from `trial_adapter.assignments_undone`; attributes do so here.

    with custom_attributes.kept(model):
        model.train_step(data)
"""

import collections
import contextlib
import functools
import operator
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts, keras_layers, keras_optimizers, variable_adapter
from kerasdist.support.unique import unique

# What Keras keeps lists of, as soon as an attribute holds it.
_TRACKED = (
    *(tf.Variable, keras.Variable, keras.layers.Layer, keras.metrics.Metric),
    keras.optimizers.Optimizer,
)
_CONTAINERS = (list, dict, set, collections.deque)
# A larger array is data that a step reads, and a copy may not fit into memory. To walk through a
# larger container, such as a vocabulary, takes seconds.
_LARGEST_ARRAY_BYTES = 2**26
_LARGEST_CONTAINER = 100_000
# TensorFlow gives this name to variables without one.
_NO_NAME = "Variable"


@contextlib.contextmanager
def kept(model: keras.Model) -> Generator[None]:
    """Puts back what steps inside change in the attributes of what is the user's own in `model`.

    Numbers, strings and other values, and the contents of lists, dicts, sets and arrays, but for
    very large ones. What other objects hold is theirs. Of Keras' own layers and variables, it puts
    back what they are set to, such as `trainable`.
    """
    snapshot = Snapshot(model)
    try:
        yield
    finally:
        snapshot.put_back()


class Snapshot:
    """What is the user's own in a model, as it is now; see `kept`."""

    def __init__(self, model: keras.Model):
        self._settings = _Settings(model)
        self._parts = [_Kept(part) for part in _own_parts_of(model)]

    def put_back(self) -> None:
        """Gives every attribute the value that it had."""
        self._settings.put_back()
        for each in self._parts:
            each.put_back()

    def changed(self) -> list[str]:
        """Returns names of attributes with another number or another content: "'n' of 'model'".

        Not those that a step sets to something new, such as its last outputs, nor those of metrics,
        which see all examples (`whole_metrics`).
        """
        return [name for each in self._parts for name in each.changed()]


@contextlib.contextmanager
def each_kept(parts: Iterable) -> Generator[None]:
    """Puts back what is changed inside in the attributes of some parts of a model."""
    before = [_Kept(part) for part in parts]
    try:
        yield
    finally:
        for each in before:
            each.put_back()


def states_of(model: keras.Model) -> list[tuple[str, Any]]:
    """Returns names and TensorFlow's variables that a model keeps and no optimizer trains.

    Not those that belong to the examples of a replica: the statistics of BatchNormalization, which
    has a warning of its own, the states of recurrent layers, and what is made to be a sum or a mean
    when it is read. A variable in an attribute that was given no name has that of the attribute,
    such as "augmenter.probability".
    """
    layers = keras_layers.layers_of(model)
    of_examples = (keras.layers.BatchNormalization, keras.layers.RNN)
    left_out = [each for each in layers if isinstance(each, of_examples)]
    left_out = {id(weight) for layer in left_out for weight in layer.weights}
    weights = [each for each in model.non_trainable_weights if id(each) not in left_out]
    states = [
        *((each.path, each.value) for each in weights),
        *(
            (_name_of(variable, attribute, owner, model), variable)
            for owner in layers
            if _is_own(owner)
            for attribute, held in vars(owner).items()
            for variable in _values_in([held])
            if isinstance(variable, tf.Variable)
        ),
    ]
    different = {id(state): (name, state) for name, state in states if _is_number(state)}
    return list(different.values())


def _name_of(variable: Any, attribute: str, owner: Any, model: keras.Model) -> str:
    name = variable.name.partition(":")[0]
    if name != _NO_NAME:
        return name
    if owner is model:
        return attribute
    holders = [name for name, held in _own_attributes(model).items() if held is owner]
    return f"{holders[0] if holders else owner.name}.{attribute}"


def variables_of(model: keras.Model) -> dict[str, Any]:
    """Returns TensorFlow's variables in the attributes of a model and of the user's own layers.

    Among them the states of `tf.random.Generator`, and the variables of `tf.Module`. The names,
    such as "0.memory.0", are the same in every run: the layer, counted from the model, its
    attribute, and the place in it. What belongs to a variable of Keras' is left out.
    """
    known = {id(each.value) for each in model.variables}
    owners = [each for each in keras_layers.layers_of(model) if each is model or _is_own(each)]
    return {
        f"{index}.{name}.{place}": variable
        for index, owner in enumerate(owners)
        for name, held in _own_attributes(owner).items()
        if not name.startswith("_self_")  # TensorFlow's own list of the same attributes.
        for place, variable in enumerate(_variables_in(held))
        if id(variable) not in known and _has_numbers(variable)
    }


def _variables_in(held: Any) -> list:
    return [
        variable
        for value in _values_in([held])
        for variable in (
            [value]
            if isinstance(value, tf.Variable | variable_adapter.ShardedVariable)
            else [value.state]
            if isinstance(value, tf.random.Generator)
            else value.variables
            if isinstance(value, tf.Module)
            else []
        )
    ]


def _has_numbers(variable: Any) -> bool:
    dtype = variable.dtype
    is_number = dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool
    return is_number and variable.shape.is_fully_defined()


def _is_number(variable: Any) -> bool:
    """Whether a variable holds numbers of a known shape, the same ones on all replicas."""
    dtype = variable.dtype
    return (
        (dtype.is_floating or dtype.is_integer or dtype.is_bool)
        and variable.shape.is_fully_defined()
        and variable.synchronization != tf.VariableSynchronization.ON_READ
    )


class _Kept:
    """The attributes of an object as they are now, without those of Keras' base classes."""

    def __init__(self, owner: Any):
        self._owner = owner
        self._attributes = _own_attributes(owner)
        self._is_built, self._tracked = _is_built(owner), _tracked_by(owner)
        self._contents = [
            (each, _copy(each))
            for each in _values_in(self._attributes.values())
            if _is_changed_in_place(each)
        ]

    def changed(self) -> list[str]:
        """Returns the names of attributes that count or collect something; see `Snapshot`."""
        is_metric = isinstance(self._owner, keras.metrics.Metric)
        if is_metric or _tracked_by(self._owner) != self._tracked:
            return []
        now = _own_attributes(self._owner)
        changed = {id(held) for held, content in self._contents if not _is_same(held, content)}
        owner = getattr(self._owner, "name", type(self._owner).__name__)
        return [
            f"'{name}' of '{owner}'"
            for name, held in self._attributes.items()
            if (_is_plain(held) and now.get(name) != held)
            or any(id(each) in changed for each in _values_in([held]))
            or self._is_replaced(held, now.get(name))
        ]

    def _is_replaced(self, held: Any, now: Any) -> bool:
        """Whether a list has become another one, as in `self.seen = [*self.seen, x]`."""
        contents = (content for each, content in self._contents if each is held)
        content = next(contents, None)
        return content is not None and (type(now) is not type(held) or not _is_same(now, content))

    def put_back(self) -> None:
        # Variables stay, so what says that they are made must stay too, or they were made twice.
        if _tracked_by(self._owner) != self._tracked:
            return
        attributes = vars(self._owner)  # Without Keras' own way, which tracks what it is given.
        before = self._attributes
        if _is_built(self._owner) == self._is_built:
            for name in _own_attributes(self._owner).keys() - before.keys():
                del attributes[name]
        else:  # Its `build` has made the rest.
            before = {
                name: held
                for name, held in before.items()
                if _is_plain(held) or _is_changed_in_place(held)
            }
        attributes.update(before)
        for held, content in self._contents:
            _refill(held, content)


class _Settings:
    """What the layers and variables of a model are set to now: `trainable`, a rate of Dropout."""

    def __init__(self, model: keras.Model):
        self._of_layers: list[Any] = [
            (layer, layer.built, _numbers_of(layer)) for layer in keras_layers.layers_of(model)
        ]
        self._are_trainable = [(variable, variable.trainable) for variable in model.variables]

    def put_back(self) -> None:
        for layer, is_built, numbers in self._of_layers:
            if layer.built == is_built:  # Building sets some of them for good.
                vars(layer).update(numbers)
        for variable, is_trainable in self._are_trainable:
            variable.trainable = is_trainable


def _numbers_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the numbers in a layer's attributes, without the user's own, which are `_Kept`."""
    own = _own_attributes(layer) if _is_own(layer) else {}
    return {
        name: held
        for name, held in vars(layer).items()
        if type(held) in (bool, int, float) and name not in own
    }


def _own_parts_of(model: keras.Model) -> list:
    metrics = custom_parts.metrics_of(model)
    parts = [
        *keras_layers.layers_of(model),
        *metrics,
        # Until the first step, those given to `compile` wait in a metric of Keras'.
        *_instances_in(metrics, keras.metrics.Metric),
        *_instances_in([model], keras.losses.Loss),
        *keras_optimizers.nested_of(model),
    ]
    return [part for part in unique(parts) if _is_own(part)]


def _instances_in(owners: list, kind: type) -> list:
    """Returns the instances of a class in the attributes of `owners`."""
    return [
        value
        for owner in owners
        for value in _values_in(vars(owner).values())
        if isinstance(value, kind)
    ]


def _is_own(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] != "keras"


def _own_attributes(owner: Any) -> dict[str, Any]:
    return {name: held for name, held in vars(owner).items() if name not in _names_of_keras()}


@functools.cache
def _names_of_keras() -> frozenset[str]:
    """Returns the names of the attributes that Keras gives every model, layer, metric and loss."""
    # Keras counts those without a name, which later ones would show.
    inputs = keras.Input((1,), name="inputs")
    examples = (
        keras.Model(inputs, keras.layers.Identity(name="any")(inputs), name="any"),
        *(keras.Model(name="any"), keras.Sequential(name="any"), keras.layers.Layer(name="any")),
        *(keras.metrics.Metric(name="any"), keras.losses.Loss(name="any")),
    )
    return frozenset(name for each in examples for name in vars(each))


def _is_built(owner: Any) -> bool:
    return getattr(owner, "built", True)


def _tracked_by(owner: Any) -> set[int]:
    """Returns the ids of what is there once only: what Keras tracks in `owner`."""
    return {id(each) for each in _values_in(vars(owner).values()) if isinstance(each, _TRACKED)}


def _values_in(values: Iterable) -> Iterator:
    """Yields values and what is inside of those that are containers, at any depth.

    What is inside of very large ones is left out.
    """
    seen = set()
    remaining = list(values)
    while remaining:
        value = remaining.pop()
        yield value
        is_container = isinstance(value, (*_CONTAINERS, tuple))
        if is_container and len(value) <= _LARGEST_CONTAINER and id(value) not in seen:
            seen.add(id(value))
            remaining.extend(value.values() if isinstance(value, dict) else value)


def _is_changed_in_place(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.flags.writeable and value.nbytes <= _LARGEST_ARRAY_BYTES
    return issubclass(type(value), _CONTAINERS) and len(value) <= _LARGEST_CONTAINER


def _copy(held: Any):
    if isinstance(held, np.ndarray):
        return held.copy()
    return dict(held) if isinstance(held, dict) else list(held)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | np.number)


def _is_same(held: Any, content: Any) -> bool:
    if isinstance(held, np.ndarray):
        return np.array_equal(held, content)
    now = _copy(held)
    if isinstance(now, dict):
        now, content = [*now, *now.values()], [*content, *content.values()]
    return len(now) == len(content) and all(map(operator.is_, now, content))


def _refill(held: Any, content: Any) -> None:
    if isinstance(held, np.ndarray):
        held[...] = content
        return
    # Python's own methods: those of Keras' containers track anew what they are given.
    kind: Any = next(
        each for each in type(held).__mro__ if each.__module__ in ("builtins", "collections")
    )
    kind.clear(held)
    fill = kind.extend if hasattr(kind, "extend") else kind.update
    fill(held, content)
