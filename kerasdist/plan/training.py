"""Rows of the plan: the settings of a compiled model that are in force, read from it."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.plan import placement
from kerasdist.private import keras_optimizers
from kerasdist.strategies.choice import gradient_of_update
from kerasdist.training.context import deployment
from kerasdist.training.context.deployment import Deployment
from kerasdist.training.hooks import (
    batch_hooks,
    differing_layers,
    scope_checks,
    update_callback,
    xla,
)


def facts(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, Any]:
    """Returns arguments of `Plan` for a model.

    Args:
        model: A compiled one, created in the scope of its strategy.
        callbacks: Those that `fit` will get.

    Raises:
        ValueError: The model is not compiled.
        RuntimeError: The model, or with parameter servers one of its variables, was created
            outside the scope of one of our strategies.
    """
    if not model.compiled:
        raise ValueError(
            f"Model '{model.name}' is not compiled, so its optimizer is not known. Call "
            "`model.compile(...)` inside `strategy.scope()` first."
        )
    scope_checks.check_has_strategy(model, "The plan")
    strategy = model.distribute_strategy
    devices = tuple(_short_name(device) for device in strategy.extended.worker_devices)
    num_replicas = strategy.num_replicas_in_sync
    found = deployment.of(strategy)
    cluster = found.cluster if found.has_remote_variables else None
    num_to_aggregate = found.remote.num_to_aggregate if found.remote else None
    num_shares = num_to_aggregate or num_replicas
    shares = "batches of an update" if num_to_aggregate else "replicas"
    return {
        "strategy": _strategy(strategy, found.reason),
        "devices": devices,
        "num_workers": cluster.num_workers if cluster else num_replicas // len(devices),
        "num_ps": cluster.num_ps if cluster else 0,
        "num_to_aggregate": num_to_aggregate,
        "settings": {
            "steps per call": _steps_per_call(model, found, callbacks),
            "optimizer": _optimizer(model.optimizer),
            "update": _update(callbacks, num_replicas, found),
            "messages": _messages(found),
            "precision": model.dtype_policy.name,
            "XLA": xla.describe(model),
            **(placement.rows(model, num_ps=cluster.num_ps) if cluster else {}),
        },
        "warnings": (
            *differing_layers.notes_of_statistics(model, num_shares, shares=shares),
            *differing_layers.notes_of_random_numbers(model, num_shares, shares=shares),
        ),
    }


def _strategy(strategy: tf.distribute.Strategy, reason: str):
    return f"{type(strategy).__name__} ({reason})" if reason else type(strategy).__name__


def _update(callbacks: Sequence[keras.callbacks.Callback], num_replicas: int, found: Deployment):
    steps = [step for each in update_callback.among(callbacks) if (step := each.describe())]
    return ", ".join([_gradient(num_replicas, found), *steps]) if steps else ""


def _gradient(num_replicas: int, found: Deployment) -> str:
    """Returns what the first callback that changes the update is given."""
    if found.remote and found.remote.num_to_aggregate:
        return gradient_of_update(
            found.remote.num_to_aggregate, num_workers=found.cluster.num_workers
        )
    if found.remote:
        return "each worker's gradient"
    return f"sum of {num_replicas} gradients" if num_replicas > 1 else "gradient"


def _messages(found: Deployment) -> str:
    options: Any = found.messages
    if options is None:
        return ""
    narrow = f", rounded to {found.allreduce_dtype}" if found.allreduce_dtype else ""
    size = (
        f"messages of {options.bytes_per_pack:,} bytes" if options.bytes_per_pack else "one message"
    )
    return f"all-reduce {options.implementation.name}, all gradients of a step in {size}{narrow}"


def _steps_per_call(
    model: keras.Model, found: Deployment, callbacks: Sequence[keras.callbacks.Callback]
):
    if model.steps_per_execution > 1:
        return str(model.steps_per_execution)
    if not found.remote:
        return ""
    if found.remote.steps_per_call:
        return str(found.remote.steps_per_call)
    owners = batch_hooks.owners(callbacks)
    if owners and (found.cluster.num_workers == 1 or not found.is_async):
        return f"1, {batch_hooks.reason(owners)}"
    return "chosen while training, about 0.1 s each; make_strategy(steps_per_call=...) fixes it"


def _optimizer(optimizer: Any):
    if optimizer is None:
        return ""
    named = [
        f"{type(each).__name__}, {_learning_rate(each)}"
        for each in keras_optimizers.updating(optimizer)
    ]
    inner = keras_optimizers.inner_of(optimizer)
    if keras_optimizers.divides(inner):
        return f"{type(inner).__name__} of {'; '.join(named) or 'those that it makes'}"
    return named[0]


def _learning_rate(optimizer: Any):
    try:
        rate = optimizer.get_config()["learning_rate"]
    except NotImplementedError:
        return "learning rate of a schedule without `get_config`"
    if isinstance(rate, Mapping):
        arguments = {name: value for name, value in rate["config"].items() if name != "name"}
        settings = ", ".join(f"{name}={_number(value)}" for name, value in arguments.items())
        return f"learning rate {rate['class_name']}({settings})"
    return f"learning rate {_number(rate)}"


def _number(value: Any):
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short_name(device: str):
    return device.rpartition("device:")[2] or device
