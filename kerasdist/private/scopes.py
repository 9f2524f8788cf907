"""Scopes of strategies: in whose a thing was made, and how it is taken into another one.

tests/private/test_scopes.py fails when one of these names moves. Written against Keras 3.12 to
3.15, and TensorFlow 2.20 and 2.21.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.optimizers import base_optimizer

from kerasdist.private import names, variable_adapter


def strategy_of(made: Any):
    """Returns the strategy in whose scope a model, layer, metric or optimizer was created.

    None outside of scopes, and for whatever else a callback may be given as its model.
    """
    is_optimizer = isinstance(made, base_optimizer.BaseOptimizer)
    # While an optimizer is being made, it has none yet.
    name = "_distribution_strategy" if is_optimizer else "_distribute_strategy"
    return getattr(made, name, None)


def note_strategy(made: Any, strategy: Any) -> None:
    """Notes in whose scope a layer or a metric is created, as Keras does of models."""
    object.__setattr__(made, "_distribute_strategy", strategy)


@contextlib.contextmanager
def strategy_hidden(model: keras.Model) -> Generator[None]:
    """Lets Keras take a model for one that was created outside of scopes."""
    strategy = strategy_of(model)
    note_strategy(model, None)
    try:
        yield
    finally:
        note_strategy(model, strategy)


def owner_of(variable: keras.Variable | tf.Variable):
    """Returns the strategy in whose scope a variable was created; None outside of scopes.

    TensorFlow's public `variable_created_in_scope` asks one strategy.
    """
    return getattr(variable_adapter.value_of(variable), "_distribute_strategy", None)


def makers() -> list:
    """Returns what a variable is being made for, the innermost of the layers around it first."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    return [scope.caller for scope in reversed(scopes)]


def layer_being_built() -> keras.layers.Layer | None:
    """Returns the layer in whose name scope a variable is being made; None outside of layers."""
    return next(iter(makers()), None)


def adopt_variables(
    variables: list[keras.Variable],
    strategy: tf.distribute.Strategy,
    layers: Sequence[keras.Layer] = (),
) -> None:
    """Takes variables from outside, with their values, into the scope of a strategy.

    Args:
        variables: Those to take in.
        strategy: Whose scope.
        layers: Those that the variables may be of, the ones inside of others after these.
    """
    of_layers = {id(variable): layer for layer in layers for variable in layer.variables}
    for variable in variables:
        layer = of_layers.get(id(variable))
        is_made_for = backend.name_scope(layer.name, caller=layer) if layer else nullcontext()
        with is_made_for, outside_scopes():
            _adopt(variable, strategy)


def _adopt(variable: keras.Variable, strategy: tf.distribute.Strategy) -> None:
    value = variable.numpy()
    with held_by_first_replica(variable._value, strategy), strategy.scope():
        variable._initialize(value)
    if variable.synchronization == "on_read":  # Replicas have begun with it each, and add them up.
        variable.assign(value)


@contextlib.contextmanager
def held_by_first_replica(
    variable: tf.Variable, strategy: tf.distribute.Strategy
) -> Generator[None]:
    """Lets the variable that is made inside hold another one as that of its first replica.

    What was compiled for that one, as `predict` of another model, then goes on with what the
    replicas make of it. TensorFlow makes a variable of several replicas of one for each. Nothing is
    held where the first replica is on another device, as with parameter servers.

    Args:
        variable: From outside of scopes.
        strategy: Whose scope is entered inside.
    """
    held = [variable] if variable.device == strategy.extended.worker_devices[0] else []

    def create(next_creator: Callable, **kwargs: Any):
        if not held:
            return next_creator(**kwargs)
        value = kwargs["initial_value"]  # On several workers a function, which gets the chief's.
        variable.assign(value() if callable(value) else value)
        # A variable of replicas says of both what its first one does.
        for name in ("synchronization", "aggregation"):
            names.overwrite(variable, f"_{name}", kwargs[name])
        return held.pop()

    with tf.variable_creator_scope(create):
        yield


def mark_variables(variables: list[keras.Variable], strategy: tf.distribute.Strategy) -> None:
    """Makes variables those of a strategy over one device, where they stay the same objects.

    Functions that were compiled before, of another model that shares them, read them as ever.
    """
    for variable in variables:
        names.overwrite(variable.value, "_distribute_strategy", strategy)


def adopt_model(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Makes a model from outside one of a strategy; its variables stay as they are."""
    names.overwrite(model, "_distribute_strategy", strategy)


@contextlib.contextmanager
def outside_scopes() -> Generator[None]:
    """Leaves the scope of a strategy, and the trace of a function, for the variables made inside.

    TensorFlow has no public way out of `with strategy.scope():`.
    """
    graph = tf.compat.v1.get_default_graph()
    strategies, creators = graph._distribution_strategy_stack, graph._variable_creator_stack
    graph._distribution_strategy_stack, graph._variable_creator_stack = [], []
    try:
        with tf.device(None) if strategies else contextlib.nullcontext():
            yield
    finally:
        graph._distribution_strategy_stack, graph._variable_creator_stack = strategies, creators


def reset_graph(reset: Callable) -> None:
    """Lets the scopes that are entered stay so where TensorFlow makes a new default graph.

    It has them in the graph, and would fail to leave them there.

    Args:
        reset: TensorFlow's own function, which Keras' `clear_session` calls.
    """
    entered = tf.compat.v1.get_default_graph()
    reset()
    graph = tf.compat.v1.get_default_graph()
    names.overwrite(graph, "_thread_local", names.find(entered, "_thread_local"))


@contextlib.contextmanager
def around_initializers(context: Callable[[], Any]) -> Generator[None]:
    """Enters `context()` wherever Keras computes the first value of a variable."""

    # All variables of layers go through this one of TensorFlow's backend.
    def initialize(original: Callable, variable: Any, initializer: Callable):
        def within(*args: Any, **kwargs: Any):
            with context():
                return initializer(*args, **kwargs)

        original(variable, within)

    with names.replaced({(keras.Variable, "_initialize_with_initializer"): initialize}):
        yield
