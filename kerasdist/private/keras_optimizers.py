"""Optimizers of Keras: those that a model holds, how they are built, and their averages.

tests/private/test_keras_optimizers.py fails when one of these names moves. Written against Keras
3.12 to 3.15.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from kerasdist.private import keras_layers, scopes, variable_adapter
from kerasdist.support.replaced_method import method_replaced
from kerasdist.support.unique import unique

# Keras 3.15 has it: each variable is updated by one of the optimizers in it.
_MultiOptimizer: Any = getattr(keras.optimizers, "MultiOptimizer", ())


def adopt(optimizer: BaseOptimizer, strategy: Any) -> None:
    """Takes an optimizer into the scope of a strategy, with all that it holds from outside.

    Also what its `build` has made for itself, as that of Nadam does wherever it is called.
    """
    inside = nested(optimizer)
    held = [each for one in inside for value in vars(one).values() for each in _values_in(value)]
    variables = unique(
        each
        for each in [*optimizer.variables, *held]
        if isinstance(each, keras.Variable) and scopes.owner_of(each) is None
    )
    scopes.adopt_variables(variables, strategy)
    for each in inside:
        each._distribution_strategy = strategy


def optimizers_of(model: keras.Layer | BaseOptimizer) -> list[BaseOptimizer]:
    """Returns the optimizers that `model` holds: its own, and those that it was given beside.

    Also those in its lists and dicts; one that it holds twice comes once.
    """
    held = [each for value in list(vars(model).values()) for each in _values_in(value)]
    return unique(each for each in held if isinstance(each, BaseOptimizer))


def optimizers_inside(model: keras.Model) -> list[BaseOptimizer]:
    """Returns the optimizers that the layers of `model` hold, also as compiled models."""
    layers = [each for each in keras_layers.layers_of(model) if each is not model]
    return [optimizer for layer in layers for optimizer in optimizers_of(layer)]


def inner_of(optimizer: BaseOptimizer):
    """Returns the optimizer that gets the gradients of a LossScaleOptimizer, or one as it is."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def divides(optimizer: BaseOptimizer) -> bool:
    """Whether an optimizer divides the gradients among others, as a MultiOptimizer does."""
    return isinstance(optimizer, _MultiOptimizer)


def nested(optimizer: BaseOptimizer) -> list:
    """Returns an optimizer and all that it holds, to any depth."""
    found = [optimizer]
    for each in found:  # It grows.
        found += [inner for inner in optimizers_of(each) if not any(inner is one for one in found)]
    return found


def updating(optimizer: BaseOptimizer) -> list:
    """Returns those that update: what a LossScaleOptimizer or a MultiOptimizer hands over to."""
    inner = inner_of(optimizer)
    return list(inner.optimizers) if divides(inner) else [inner]


def nested_of(model: keras.Model) -> list:
    """Returns `nested` of all optimizers that `model` holds."""
    return unique(each for optimizer in optimizers_of(model) for each in nested(optimizer))


def updating_of(model: keras.Model) -> list:
    """Returns `updating` of all optimizers that `model` holds."""
    return [each for optimizer in optimizers_of(model) for each in updating(optimizer)]


def learning_rates_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the learning rates of all optimizers of `model`, without those of schedules."""
    optimizers = [*optimizers_of(model), *optimizers_inside(model)]
    found = unique(each for optimizer in optimizers for each in updating(optimizer))
    rates = [each._learning_rate for each in found]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def _values_in(held: Any) -> list:
    if isinstance(held, dict):
        return list(held.values())
    return list(held) if isinstance(held, list | tuple) else [held]


@contextlib.contextmanager
def without_optimizers(model: keras.Model) -> Generator[None]:
    """Hides the optimizers of `model`, which Keras saves and loads with its weights."""
    held = {
        name: value
        for name, value in vars(model).items()
        if (inside := _values_in(value)) and all(isinstance(each, BaseOptimizer) for each in inside)
    }
    for name in held:
        object.__setattr__(model, name, None)  # Keras' own would forget what they hold.
    try:
        yield
    finally:
        for name, value in held.items():
            object.__setattr__(model, name, value)


@contextlib.contextmanager
def saving_instead(model: keras.Model, value_of: Callable) -> Generator[None]:
    """Lets the layers of `model` save `value_of(variable)` in place of each of their variables."""
    with contextlib.ExitStack() as stack:
        for layer in keras_layers.layers_of(model):
            stack.enter_context(method_replaced(layer, "save_own_variables", _save, value_of))
        stack.enter_context(without_optimizers(model))
        yield


def _save(save_own_variables: Callable, value_of: Callable, store: Any):
    variables: dict = {}
    save_own_variables(variables)
    for key, value in variables.items():
        store[key] = value_of(value) if isinstance(value, keras.Variable) else value


def begin_average_with(optimizer: BaseOptimizer | None, variable: keras.Variable) -> None:
    """Sets the average that `use_ema` keeps of a variable to its value; nothing without one."""
    for each in updating(optimizer) if optimizer is not None else ():
        if not each.built or not each.use_ema:
            continue
        pairs = zip(each._trainable_variables, each._model_variables_moving_average, strict=True)
        for trained, average in pairs:
            if trained is variable:
                average.assign(trained)


def average_each(
    original: Callable, optimizer: BaseOptimizer, variables: list[keras.Variable]
) -> None:
    """Updates the averages of variables, also of parts that stand in for them.

    Args:
        original: Keras' own, of an optimizer and all variables that it updates.
        optimizer: A built one with `use_ema`.
        variables: Some of those.
    """
    averages = optimizer._model_variables_moving_average
    for variable in variables:
        average = _average_of(optimizer, variable)
        if average is None:
            continue
        shape = average._shape
        object.__setattr__(optimizer, "_model_variables_moving_average", [average])
        average._shape = tuple(average.value.shape)  # The assigned value has it.
        try:
            original(optimizer, [variable])
        finally:
            average._shape = shape
            object.__setattr__(optimizer, "_model_variables_moving_average", averages)


def overwrite_each(
    frequency: int, optimizer: BaseOptimizer, variables: list[keras.Variable]
) -> None:
    """Overwrites variables with their averages, as `ema_overwrite_frequency` does."""
    is_due = tf.equal((tf.convert_to_tensor(optimizer.iterations) + 1) % frequency, 0)
    for variable in variables:
        average = _average_of(optimizer, variable)
        if average is not None:
            value = variable_adapter.value_of(variable)
            value.assign(tf.where(is_due, average.value, value))


def _average_of(optimizer: BaseOptimizer, variable: keras.Variable):
    return optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]


def variables_trained_by(optimizer: BaseOptimizer) -> list[keras.Variable]:
    """Returns the variables that a built optimizer updates, in the order of their gradients."""
    return optimizer._trainable_variables


def build_optimizer(model: keras.Model) -> None:
    """Creates the variables of the optimizer, where the model has all of its own."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built and keras_layers.is_built(model):
        build(optimizer, model.trainable_variables)


def build(optimizer: BaseOptimizer, variables: list[keras.Variable]) -> None:
    """Creates the variables of an optimizer, each beside the weight that it is for.

    Keras asks for that where they have the weight's shape. For others, such as the factors of
    Adafactor, it is the weight that the optimizer has come to in its walk through them.
    """
    weights = _Walk(variables)

    def create(next_creator: Callable, **kwargs: Any):
        if weights.now is not None and kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = weights.now
        return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
        optimizer.build(weights)


class _Walk(list):
    """A list of weights that knows which one a loop over it has come to, in `now`: TensorFlow's.

    None for one in several parts, which has no single place.
    """

    now: Any = None

    def __iter__(self):
        for variable in super().__iter__():
            value = variable_adapter.value_of(variable)
            self.now = None if hasattr(value, "variables") else value
            yield variable
        self.now = None


def know_parts(optimizer: BaseOptimizer, variable: Any) -> None:
    """Lets an optimizer find the slots of a sharded variable by each of its parts.

    A slot itself, such as a sum of gradients, has none.
    """
    indices = optimizer._trainable_variables_indices
    index = indices.get(optimizer._var_key(variable))
    if index is not None:
        indices.update({optimizer._var_key(part): index for part in variable.variables})


def counter_of(optimizer: BaseOptimizer) -> keras.Variable:
    """Returns what an optimizer counts its calls in; with accumulation `iterations` is computed."""
    return optimizer._iterations


def numbers_of(optimizer: BaseOptimizer) -> list[keras.Variable]:
    """Returns the scalars of an optimizer that each update of a weight reads."""
    numbers = [optimizer._iterations, optimizer._learning_rate]
    return [each for each in numbers if isinstance(each, keras.Variable)]
