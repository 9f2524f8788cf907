"""What slim's trainer does with its flags, out of slim's own parts.

The script itself is in no package. Its numbers come from these parts: nets, losses, clones,
multipliers, clipping, optimizers, the falling learning rate and averages of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.slim import legacy
from tests.slim.nets import NUM_CLASSES

AUXILIARY_WEIGHT = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The flags of a training, with slim's names, and numbers that float32 has exactly.

    Args:
        model_name: The net.
        batch_size: Of a clone.
        optimizer: Returns the optimizer; takes `tf.compat.v1.train` and a learning rate.
        gradient_multipliers: Factors by the names of variables; slim's trainer has no such flag,
            but `slim.learning.create_train_op` has.
        clip_gradient_norm: The same; 0 for no limit.
        num_clones: How many share a step.
    """

    model_name: str
    batch_size: int
    optimizer: Callable[[Any, Any], Any]
    gradient_multipliers: dict[str, float]
    clip_gradient_norm: float = 0.5
    num_clones: int = 1
    learning_rate: float = 0.0625
    learning_rate_decay_factor: float = 0.5
    num_epochs_per_decay: float = 5.0
    moving_average_decay: float = 0.375
    weight_decay: float = 0.015625
    label_smoothing: float = 0.125
    max_number_of_steps: int = 12


def train(
    settings: Settings, images: np.ndarray, labels: np.ndarray, *, start: str, folder: Path
) -> str:
    """Trains a net of slim, with the same images in each step.

    Args:
        settings: The flags.
        images: float32 [clones * batch, height, width, channels].
        labels: int64 [clones * batch].
        start: The prefix of the checkpoint to begin with.
        folder: Where another one is written.

    Returns:
        The prefix of a checkpoint with the weights and their averages.
    """
    v1, slim = tf.compat.v1, legacy.load("tf_slim")
    with legacy.session() as session:
        step = v1.train.get_or_create_global_step()
        update = _update(settings, images, labels, step)
        variables = slim.get_model_variables()
        average = v1.train.ExponentialMovingAverage(settings.moving_average_decay, step)
        move = average.apply(variables)
        averages = [average.average(each) for each in variables]
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables).restore(session, start)
        session.run(v1.variables_initializer(averages))  # They begin with the weights.
        for _ in range(settings.max_number_of_steps):
            session.run(update)
            # After the update, as SyncReplicasOptimizer has it: slim's trainer alone says no order.
            session.run(move)
        prefix = str(folder / "trained.ckpt")
        v1.train.Saver([*variables, *averages]).save(session, prefix, write_meta_graph=False)
    return prefix


def _update(settings: Settings, images: np.ndarray, labels: np.ndarray, step: Any) -> Any:
    v1, slim = tf.compat.v1, legacy.load("tf_slim")
    model_deploy = legacy.load("deployment.model_deploy")
    config = model_deploy.DeploymentConfig(settings.num_clones, clone_on_cpu=True)
    shares = zip(
        np.split(images, settings.num_clones), np.split(labels, settings.num_clones), strict=True
    )
    clones = model_deploy.create_clones(config, lambda: _make_clone(settings, *next(shares)))
    decay_steps = int(len(images) * settings.num_epochs_per_decay / settings.batch_size)
    rate = v1.train.exponential_decay(
        settings.learning_rate,
        step,
        decay_steps,
        settings.learning_rate_decay_factor,
        staircase=True,
    )
    optimizer = settings.optimizer(v1.train, rate)
    _, gradients = model_deploy.optimize_clones(
        clones, optimizer, var_list=v1.trainable_variables()
    )
    gradients = slim.learning.multiply_gradients(gradients, settings.gradient_multipliers)
    if settings.clip_gradient_norm:
        gradients = slim.learning.clip_gradient_norms(gradients, settings.clip_gradient_norm)
    statistics = v1.get_collection(v1.GraphKeys.UPDATE_OPS, clones[0].scope)
    return tf.group(*statistics, optimizer.apply_gradients(gradients, global_step=step))


def _make_clone(settings: Settings, images: np.ndarray, labels: np.ndarray) -> None:
    slim, factory = legacy.load("tf_slim"), legacy.load("nets.nets_factory")
    net = factory.get_network_fn(
        settings.model_name, NUM_CLASSES, weight_decay=settings.weight_decay, is_training=True
    )
    logits, end_points = net(tf.constant(images))
    targets = slim.one_hot_encoding(tf.constant(labels), NUM_CLASSES)
    losses = [(logits, 1.0)]
    if "AuxLogits" in end_points:
        losses.append((end_points["AuxLogits"], AUXILIARY_WEIGHT))
    for outputs, weight in losses:
        slim.losses.softmax_cross_entropy(
            outputs, targets, label_smoothing=settings.label_smoothing, weights=weight
        )
