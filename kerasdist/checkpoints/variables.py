"""The variables of a training as arrays, and back, also on another number of replicas."""

import collections
import itertools
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import (
    custom_parts,
    keras_layers,
    keras_optimizers,
    keras_threads,
    variable_adapter,
)
from kerasdist.support.unique import unique
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.hooks import called_optimizers
from kerasdist.training.hooks.divided_values import is_sharded
from kerasdist.training.replica import custom_attributes

# Ends the name of an array with a value for each replica: [replicas, ...].
_OF_REPLICAS = "@replicas"
# Begin the names of variables that no earlier version saved, of which each replica may have changed
# its copy by itself.
_WITH_COPIES = ("own/", "state/")


def variables_of(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns what a step changes, by names that are the same in every run of a program.

    That is everything except weights and optimizers, which Keras saves: metrics, random seeds,
    moving statistics of which each replica has its own, the states of recurrent layers with
    `stateful=True`, and variables of TensorFlow's that the user's classes hold.
    """
    statistics = [each for each in model.non_trainable_weights if is_of_replicas(each.value)]
    generator = keras_threads.known_global_seed_generator()
    groups = {
        "metric": list(_metrics_by_variable(model).values()),
        "seed": [each for each in model.variables if _is_seed(each)],
        "statistic": statistics,
        "state": _recurrent_states_of(model),
        "global seed": [generator.state] if generator else [],
    }
    named = {}
    for group, variables in groups.items():
        for index, variable in enumerate(unique(variables)):
            named[f"{group}/{index}"] = variable.value  # Keras numbers names in each process.
    own = custom_attributes.variables_of(model)
    return named | {f"own/{name}": variable for name, variable in own.items()}


def lost_optimizers_of(model: keras.Model) -> list:
    """Returns the optimizers that a train_step has taken from elsewhere: no checkpoint has them."""
    if custom_parts.is_original_step(model.train_step):
        return []
    held = [*keras_optimizers.optimizers_of(model), *keras_optimizers.optimizers_inside(model)]
    held = {id(each) for optimizer in held for each in keras_optimizers.nested(optimizer)}
    own = {id(each) for each in custom_attributes.variables_of(model).values()}
    return [
        each
        for each in called_optimizers.of(model)
        if id(each) not in held and id(each.iterations.value) not in own
    ]


def metrics_of(model: keras.Model) -> list[str]:
    """Returns for each "metric/..." of `variables_of` what it is, such as "mae 0"."""
    return list(_metrics_by_variable(model))


def with_metrics_in_order(
    arrays: Mapping[str, np.ndarray], then: list[str], now: list[str]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint with its metrics in the order of those of a model.

    Args:
        arrays: As `read` returned them.
        then: `metrics_of` the model that they were read of.
        now: `metrics_of` the model that they are for; what is not in `then` gets nothing.
    """
    others = {name: each for name, each in arrays.items() if not name.startswith("metric/")}
    return others | {
        f"metric/{now.index(metric)}{suffix}": arrays[f"metric/{index}{suffix}"]
        for index, metric in enumerate(then)
        for suffix in ("", _OF_REPLICAS)
        if metric in now and f"metric/{index}{suffix}" in arrays
    }


def _metrics_by_variable(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the variables of metrics by the metric and the place in it.

    Keras numbers the names that it gives in each process, and so they are counted here.
    """
    names, counts, metrics = {}, collections.Counter(), custom_parts.metrics_of(model)
    # Those given to `compile` are in one of Keras' that holds them all.
    for metric in sorted(metrics, key=lambda each: hasattr(each, "metrics")):
        name = re.sub(r"_\d+$", "", metric.name)
        if name.replace("_", "") != type(metric).__name__.lower():  # The program's.
            name = metric.name
        counts[name] += 1
        count = f" ({counts[name]})" if counts[name] > 1 else ""
        for place, variable in enumerate(metric.variables):
            names.setdefault(id(variable), f"{name}{count} {place}")
    return {names[id(each)]: each for metric in metrics for each in metric.variables}


def _recurrent_states_of(model: keras.Model) -> list[keras.Variable]:
    """Returns what Keras has in no list of variables."""
    layers = keras_layers.layers_of(model)
    held = [getattr(each, "states", None) for each in layers if isinstance(each, keras.layers.RNN)]
    return [each for each in keras.tree.flatten(held) if isinstance(each, keras.Variable)]


def missing_in(arrays: Mapping[str, np.ndarray], model: keras.Model) -> list[str]:
    """Returns in words what a checkpoint, as of an earlier version of kerasdist, does not hold."""
    missing = [
        name
        for name in variables_of(model)
        if name.startswith(_WITH_COPIES) and not {name, name + _OF_REPLICAS} & arrays.keys()
    ]
    words = ["the states of RNNs" if each.startswith("state/") else each for each in missing]
    return list(dict.fromkeys(re.sub(r"^own/\d+\.(.*)\.\d+$", r"'\1'", each) for each in words))


def weights_of(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the weights by names like those of `variables_of`."""
    return {f"weight/{index}": each.value for index, each in enumerate(model.weights)}


def weights_apart(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns those of `weights_of` that Keras does not save as they are.

    A layer with LoRA saves its kernel with the product of two small matrices added, and loading
    sets both to zero, where they never learn again. Users' layers may leave weights out.
    """
    saved = set()
    for layer in keras_layers.layers_of(model):
        store: dict = {}
        layer.save_own_variables(store)
        saved |= {id(each) for each in store.values() if isinstance(each, keras.Variable)}
    is_apart = [id(each) not in saved for each in model.weights]
    return dict(itertools.compress(weights_of(model).items(), is_apart))


def signature_of(model: keras.Model) -> list[list]:
    """Returns [what it is, its path, shape, dtype] of all that is trained, and of the optimizer."""
    optimizer = model.optimizer
    slots = [] if optimizer is None else optimizer.variables
    kind = "no optimizer" if optimizer is None else type(optimizer).__name__
    return [
        [what, each.path, list(each.shape), keras.backend.standardize_dtype(each.dtype)]
        for what, variables in (("weight", model.weights), (kind, slots))
        for each in variables
    ]


def weights_in(signature: list[list]) -> list[list]:
    """Returns the entries of a signature that are weights."""
    return [each for each in signature if each[0] == "weight"]


def other_optimizers_of(model: keras.Model) -> list[str]:
    """Returns the classes of the optimizers that a model has besides its own.

    Their slots are made in the first step, and so cannot be compared before it.
    """
    others = (each for each in keras_optimizers.optimizers_of(model) if each is not model.optimizer)
    return [type(each).__name__ for each in others]


def differences(then: list[list], now: list[list]) -> list[str]:
    """Returns in words how two signatures differ; paths may."""
    return [
        f"{_in_words(was)} in the checkpoint, {_in_words(are)} now"
        for was, are in itertools.zip_longest(then, now)
        if was is None or are is None or (was[0], *was[2:]) != (are[0], *are[2:])
    ]


def _in_words(entry: list | None) -> str:
    if entry is None:
        return "nothing"
    what, path, shape, dtype = entry
    return f"{what} {path}: {dtype} {shape}"


def read(
    strategy: tf.distribute.Strategy, named: Mapping[str, tf.Variable]
) -> dict[str, np.ndarray]:
    """Returns the values of variables; all workers must call it."""
    arrays = {}
    for name, variable in named.items():
        has_several = is_of_replicas(variable) or _has_copies(name, variable)
        if not has_several or _is_of_whole_batches(name, variable):
            arrays[name] = np.asarray(variable if is_sharded(variable) else variable.read_value())
            continue
        values = _gathered(strategy, variable)
        if name.startswith("own/") and (values == values[:1]).all():
            arrays[name] = values[0]
        else:
            arrays[name + _OF_REPLICAS] = values
    return arrays


def write(
    strategy: tf.distribute.Strategy,
    named: Mapping[str, tf.Variable],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Gives variables the values that `read` returned, maybe for other replicas."""
    for name, variable in named.items():
        values = arrays.get(name, arrays.get(name + _OF_REPLICAS))
        if values is None:  # From a deployment whose replicas have no values of their own.
            continue
        rows = values[np.newaxis] if name in arrays else values
        if is_of_replicas(variable):
            if _is_of_whole_batches(name, variable):
                rows = rows.sum(axis=0, keepdims=True, dtype=rows.dtype)
            _scatter(strategy, variable, rows)
        elif name.startswith(_WITH_COPIES):
            _write_copies(strategy, name, variable, rows)
        else:
            variable.assign(values if name in arrays else _joined(variable, values))


def is_of_replicas(variable: Any) -> bool:
    """Whether each replica has a value of its own."""
    return (
        isinstance(variable, tf.distribute.DistributedValues)
        and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    )


def _is_of_whole_batches(name: str, variable: Any) -> bool:
    """Whether each replica has counted all examples in a metric: the first one's number is it.

    Before the first step it may be so of a metric that the replicas will be found to share.
    """
    return name.startswith("metric/") and variable_adapter.reads_first_replica(variable)


def _has_copies(name: str, variable: Any) -> bool:
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    return name.startswith(_WITH_COPIES) and is_distributed


def _gathered(strategy: tf.distribute.Strategy, variable: Any) -> np.ndarray:
    copies = strategy.experimental_local_results(variable)
    own = np.stack([np.asarray(copy.read_value()) for copy in copies])
    # Workers add up float64, which does not hold every number of a random generator's state.
    parts = own.reshape(len(own), -1)
    parts = parts.view("uint32") if own.dtype in ("int64", "uint64") else parts
    everyone = np.zeros((strategy.num_replicas_in_sync, parts.shape[1]), "float64")
    replicas = peers.local_replicas(strategy)
    everyone[replicas.start : replicas.stop] = parts
    gathered = peers.sum_over(strategy, everyone).astype(parts.dtype).view(own.dtype)
    return gathered.reshape(-1, *own.shape[1:])


def _write_copies(strategy: tf.distribute.Strategy, name: str, variable: Any, values: np.ndarray):
    """Gives each replica its value [replicas, ...]: of other replicas, their rows or the first."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    shape = (strategy.num_replicas_in_sync if is_distributed else 1, *variable.shape)
    if values.size == np.prod(shape):  # The rows may be examples, which are divided anew.
        values = values.reshape(shape)
    elif values.shape[1:] == shape[1:]:
        values = np.broadcast_to(values[:1], shape)
    else:
        warn(
            f"{name} has the shape {values.shape[1:]} in the checkpoint and {shape[1:]} now: it is "
            "not restored."
        )
        return
    if not is_distributed:
        variable.assign(values[0])
        return
    _assign_copies(strategy, variable, values)


def _scatter(strategy: tf.distribute.Strategy, variable: Any, values: np.ndarray):
    num_replicas = strategy.num_replicas_in_sync
    if len(values) != num_replicas:
        whole = _joined(variable, values)
        if _is_mean(variable) or variable_adapter.reads_first_replica(variable):
            values = np.stack([whole] * num_replicas)
        else:
            values = np.stack([whole, *[np.zeros_like(whole)] * (num_replicas - 1)])
    _assign_copies(strategy, variable, values)


def _assign_copies(strategy: tf.distribute.Strategy, variable: Any, values: np.ndarray):
    """Gives the copies of this worker their values of those of all replicas."""
    own = values[peers.local_replicas(strategy).start :]
    for copy, value in zip(strategy.experimental_local_results(variable), own, strict=False):
        copy.assign(value)


def _joined(variable: Any, values: np.ndarray) -> np.ndarray:
    if variable_adapter.reads_first_replica(variable):
        return values[0]
    # A variable of one value does not say how to join several: those of metrics are added up.
    whole = values.mean(axis=0) if _is_mean(variable) else values.sum(axis=0)
    return whole.astype(values.dtype)


def _is_mean(variable: Any) -> bool:
    return getattr(variable, "aggregation", None) == tf.VariableAggregation.MEAN


def _is_seed(variable: Any) -> bool:
    return variable.path.split("/")[-1] == "seed_generator_state"
