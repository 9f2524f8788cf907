"""The variables of a training as arrays, and back, on as many replicas as there are then."""

import itertools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_adapter, keras_optimizers, keras_stock
from kerasdist.training import peers
from kerasdist.training.parameter_servers.sharded_variables import is_sharded

# After the name of what has a value for each replica: [replicas, ...].
_OF_REPLICAS = "@replicas"


def variables_of(model) -> dict[str, tf.Variable]:
    """Returns what a step changes, by names that are the same in each run of a program.

    That is all but weights and optimizers, which Keras saves: metrics, random seeds, and moving
    statistics of which each replica has its own.
    """
    statistics = [each for each in model.non_trainable_weights if is_of_replicas(each.value)]
    generator = keras_adapter.known_global_seed_generator()
    groups = {
        "metric": [each for metric in keras_stock.metrics_of(model) for each in metric.variables],
        "seed": [each for each in model.variables if _is_seed(each)],
        "statistic": statistics,
        "global seed": [generator.state] if generator else [],
    }
    named = {}
    for group, variables in groups.items():
        unique = {id(variable): variable for variable in variables}.values()
        for index, variable in enumerate(unique):
            named[f"{group}/{index}"] = variable.value  # Keras numbers names in each process.
    return named


def weights_of(model) -> dict[str, tf.Variable]:
    """Returns the weights, by names as `variables_of`."""
    return {f"weight/{index}": each.value for index, each in enumerate(model.weights)}


def weights_apart(model) -> dict[str, tf.Variable]:
    """Returns those of `weights_of` that Keras does not save as they are.

    A layer with LoRA saves its kernel with the product of two small matrices added, and loading
    sets these to zero, from where they never learn again. Layers of users may leave weights out.
    """
    saved = set()
    for layer in keras_adapter.layers_of(model):
        store: dict = {}
        layer.save_own_variables(store)
        saved |= {id(each) for each in store.values() if isinstance(each, keras.Variable)}
    is_apart = [id(each) not in saved for each in model.weights]
    return dict(itertools.compress(weights_of(model).items(), is_apart))


def signature_of(model) -> list[list]:
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
    """Returns what a signature says of the weights."""
    return [each for each in signature if each[0] == "weight"]


def other_optimizers_of(model) -> list[str]:
    """Returns the classes of the optimizers that a model has beside its own, as `signature_of`.

    Their slots are made in the first step, and so cannot be compared before it.
    """
    others = (each for each in keras_optimizers.optimizers_of(model) if each is not model.optimizer)
    return [type(each).__name__ for each in others]


def differences(then: list[list], now: list[list]) -> list[str]:
    """Returns how two signatures differ, in words; paths are no difference."""
    return [
        f"{_told(was)} in the checkpoint, {_told(are)} now"
        for was, are in itertools.zip_longest(then, now)
        if was is None or are is None or (was[0], *was[2:]) != (are[0], *are[2:])
    ]


def _told(entry) -> str:
    if entry is None:
        return "nothing"
    what, path, shape, dtype = entry
    return f"{what} {path}: {dtype} {shape}"


def read(strategy, named: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Returns the values of variables; all workers must call it."""
    arrays = {}
    for name, variable in named.items():
        if is_of_replicas(variable):
            arrays[name + _OF_REPLICAS] = _gathered(strategy, variable)
        elif is_sharded(variable):
            arrays[name] = np.asarray(variable)
        else:
            arrays[name] = np.asarray(variable.read_value())
    return arrays


def write(strategy, named: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives variables the values that `read` has returned, maybe on other replicas."""
    for name, variable in named.items():
        if name in arrays:
            values, is_of_one = arrays[name], True
        elif name + _OF_REPLICAS in arrays:
            values, is_of_one = arrays[name + _OF_REPLICAS], False
        else:  # Of another deployment, where replicas have none of their own.
            continue
        if is_of_replicas(variable):
            _scatter(strategy, variable, values[np.newaxis] if is_of_one else values)
        else:
            variable.assign(values if is_of_one else _joined(variable, values))


def is_of_replicas(variable) -> bool:
    """Whether each replica has a value of its own."""
    return (
        isinstance(variable, tf.distribute.DistributedValues)
        and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    )


def _gathered(strategy, variable) -> np.ndarray:
    copies = strategy.experimental_local_results(variable)
    own = np.stack([np.asarray(copy.read_value()) for copy in copies])
    everyone = np.zeros((strategy.num_replicas_in_sync, *own.shape[1:]), "float64")
    replicas = peers.local_replicas(strategy)
    everyone[replicas.start : replicas.stop] = own
    return peers.sum_over(strategy, everyone).astype(own.dtype)


def _scatter(strategy, variable, values: np.ndarray):
    num_replicas = strategy.num_replicas_in_sync
    if len(values) != num_replicas:
        whole = _joined(variable, values)
        if _is_mean(variable):
            values = np.stack([whole] * num_replicas)
        else:
            values = np.stack([whole, *[np.zeros_like(whole)] * (num_replicas - 1)])
    own = values[peers.local_replicas(strategy).start :]
    for copy, value in zip(strategy.experimental_local_results(variable), own, strict=False):
        copy.assign(value)


def _joined(variable, values: np.ndarray) -> np.ndarray:
    # A variable that is in one piece here does not say what it was: metrics are added up.
    whole = values.mean(axis=0) if _is_mean(variable) else values.sum(axis=0)
    return whole.astype(values.dtype)


def _is_mean(variable) -> bool:
    return getattr(variable, "aggregation", None) == tf.VariableAggregation.MEAN


def _is_seed(variable) -> bool:
    return variable.path.split("/")[-1] == "seed_generator_state"
