"""What of a step is rehearsed: all of it, or its loss alone where nothing else can differ."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_losses
from kerasdist.training.data import batches
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.losses import global_loss
from kerasdist.training.replica import replicas
from kerasdist.training.trial import few_examples, nearby_weights

# Per replica: twice as many predictions as examples of a step cost little.
_EXAMPLES_OF_LOSS = 8


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedStep:
    """A step that is rehearsed, and the examples for it.

    Attributes:
        whole: Called with all of `batch`, and with all of `touched`.
        part: Called with the share of a replica.
        alone: The same without a message to the other replicas.
        nearby: Called with a number; returns the step with other weights, or predictions, nearby.
        batch: Some of the examples.
        touched: The same, different by rounding.
        has_logs: Whether it is the step that runs, with what it returns.
    """

    whole: Callable
    part: Callable
    alone: Callable
    nearby: Callable[[int], Callable]
    batch: Any
    touched: Any
    has_logs: bool


def of(model, step: Callable, batch, logs, *, how_many: few_examples.HowMany) -> RehearsedStep:
    """Returns what to rehearse of a step: its loss where nothing else can differ.

    Args:
        model: A compiled model whose variables exist.
        step: Its train_step, called with the data of a replica.
        batch: A global batch: tensors [examples, ...].
        logs: `RehearsedLogs` of the model.
        how_many: How many examples of the batch.
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    examples = few_examples.of(batch, how_many, num_replicas, few=_EXAMPLES_OF_LOSS)
    predictions = _predict(model, examples) if custom_parts.is_loss_all_custom(model) else None
    if predictions is not None:  # Much less to compute, and no net to multiply what rounds.
        run = functools.partial(_differentiate_loss, model, predictions)
        data = (examples, tf.range(batches.num_examples(examples)))
        return RehearsedStep(
            whole=run,
            part=run,
            alone=run,
            nearby=functools.partial(_loss_nearby, model, predictions),
            batch=data,
            touched=data,
            has_logs=False,
        )
    examples = few_examples.of(batch, how_many, num_replicas)
    nearly = few_examples.touched(examples)
    return RehearsedStep(
        whole=functools.partial(logs.run_whole, step, nearly),
        part=functools.partial(logs.run_part, step),
        alone=step,
        nearby=functools.partial(nearby_weights.step_nearby, step, model),
        batch=examples,
        touched=nearly,
        has_logs=True,
    )


def _predict(model, batch):
    """Returns what `model` makes of the inputs; None where its examples cannot be taken apart."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    with keras.StatelessScope():  # Nothing assigned stays.
        predictions = model(x, training=False)
    is_divisible = all(
        tf.is_tensor(each)
        and each.dtype.is_floating
        and each.shape.rank
        and each.shape[0] == batches.num_examples(batch)
        and keras_losses.mask_of(each) is None
        for each in tf.nest.flatten(predictions)
    )
    return predictions if is_divisible else None


def _loss_nearby(model, predictions, seed: int) -> Callable:
    moved = nearby_weights.numbers_nearby(predictions, seed)
    return functools.partial(_differentiate_loss, model, moved)


def _differentiate_loss(model, predictions, data):
    """Stands for Keras' train_step where only the loss can differ: the gradient by predictions.

    Args:
        model: A model of which the loss alone is not Keras'.
        predictions: Of the whole batch.
        data: The share of a replica, and its positions in the whole batch [examples].
    """
    (x, y, sample_weight), positions = keras.utils.unpack_x_y_sample_weight(data[0]), data[1]
    replica: Any = replicas.current()
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        own = tf.nest.map_structure(lambda each: tf.gather(each, positions), predictions)
        loss = keras_losses.compute_loss(model, x, y, own, sample_weight)
        loss = global_loss.weigh(loss, replica)  # As `scale_loss` does.
    leaves = tf.nest.flatten(predictions)
    paths = ["predictions"] * len(leaves) + [variable.path for variable in variables]
    gradients = tape.gradient(loss, [*leaves, *variables])
    gradient_aggregation.keep_update(paths, gradients, replica)
