"""Chooses who computes an update of synchronous workers over parameter servers.

An update is made of the gradients of several batches, each computed by a worker, where that gives
what one device gives for the batches joined. Where it does not, one worker computes the update from
the batches joined, and the next one whoever is free: exact, and no faster than one worker.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts
from kerasdist.support.terminal import announce
from kerasdist.training.context import deployment
from kerasdist.training.data import batches, joined_batches
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.parameter_servers import data_source
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction
from kerasdist.training.synchronous_servers import inseparable, trial_of_update
from kerasdist.training.synchronous_servers.inseparable import InseparableError
from kerasdist.training.synchronous_servers.step_function import SynchronousStepFunction
from kerasdist.training.trial import fit


class WholeStepFunction(WorkerStepFunction):
    """Runs steps of which each is an update that one worker computes, one after the other.

    Args: those of `ModelStep`.
    """

    joins_batches = True


def make_step(
    model: keras.Model, step: Callable, *, dataset: tf.data.Dataset | None, **arguments: Any
) -> TrainFunction:
    """Returns what runs the train_step of a model on synchronous workers.

    Args:
        model: A compiled model.
        step: Its train_step.
        dataset: Of the batches that it is to train with first; None if nobody knows.
        **arguments: Further ones of `ModelStep`.
    """
    try:
        inseparable.check_layers(model)
        function = SynchronousStepFunction(model, step, **arguments)
        if dataset is not None and not _is_plain(model):
            _look_at(model, step, function, dataset)
        return function
    except InseparableError as error:
        number = deployment.remote_workers(model.distribute_strategy).num_to_aggregate
        announce(
            f"Each update is computed by one worker, which joins its {number} batches: "
            f"{error.reason}. {error.way_out}"
        )
        return WholeStepFunction(model, step, **arguments)


def _is_plain(model: keras.Model) -> bool:
    """Whether a model has one loss of Keras' own, a mean, and nothing of the user's own.

    Its trace would show nothing else: it costs none.
    """
    losses = keras.tree.flatten(getattr(model, "loss", None))
    return (
        len(losses) == 1
        and custom_parts.returns_original_metrics(model, "train_step")
        and custom_parts.has_original_total_loss(model)
        and custom_parts.has_original_losses(model)
        and not custom_parts.compares_examples(losses[0])
        and getattr(losses[0], "reduction", "sum_over_batch_size") not in ("sum", "none", None)
        and not custom_parts.has_custom_parts(model)
        and not custom_parts.custom_metrics_of(model)
    )


def _look_at(
    model: keras.Model, step: Callable, function: SynchronousStepFunction, dataset: tf.data.Dataset
) -> None:
    try:
        function.try_trace(_spec_of(dataset))
    except InseparableError:
        raise
    except Exception:  # The program may raise anything, and the trace that counts says it.  # noqa: BLE001
        return
    if fit.may_differ(model) or custom_parts.custom_metrics_of(model):
        number = trial_of_update.TrialOfUpdate.num_replicas_of(model.distribute_strategy)
        trial_of_update.check(model, step, some_examples(dataset, number))


def some_examples(dataset: tf.data.Dataset, num_batches: int) -> Any:
    """Returns the first batches of a dataset, joined; the first one where they cannot be.

    Raises:
        InseparableError: None can be read but by who trains.
    """
    copy = data_source.looked_at(dataset)
    if copy is None:
        raise InseparableError(
            "it has parts of the program's own, and nobody could try whether several batches "
            "share it, since the data may not be read twice",
            "Where it is a tf.data.Dataset without Python, `cache(filename)` or a tf.data service "
            "in it, that is tried.",
        )
    try:
        batch = next(iter(joined_batches.joined(copy, num_batches)), None)
    except (tf.errors.InvalidArgumentError, ValueError):  # As they are padded, say.
        batch = next(iter(copy), None)
    if batch is None:
        raise InseparableError("the data holds no batch", "Check what it is made of.")
    return batches.as_tensors(batches.without_optionals(batch))


def _spec_of(dataset: tf.data.Dataset) -> Any:
    left_out = tf.NoneTensorSpec | tf.OptionalSpec
    return tf.nest.map_structure(
        lambda spec: None if isinstance(spec, left_out) else spec, dataset.element_spec
    )
