"""Slim's nets: how they are built, and what a checkpoint of one holds."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.slim import legacy

NUM_CLASSES = 10


class Outputs(NamedTuple):
    """What a net computes.

    Args:
        checkpoint: The prefix of a checkpoint with its variables.
        logits: float32 [batch, classes].
        decay: The sum of the regularization losses, a scalar.
        auxiliary: Logits of the second classifier; None without one.
    """

    checkpoint: str
    logits: np.ndarray
    decay: np.ndarray
    auxiliary: np.ndarray | None = None


def compute(
    name: str, images: np.ndarray, folder: Path, *, weight_decay: float, **arguments: Any
) -> Outputs:
    """Returns what slim's net computes in evaluation, with weights that tell its variables apart.

    Args:
        name: One of slim's.
        images: float32 [batch, height, width, channels].
        folder: Where the checkpoint is written.
        weight_decay: In slim's scale.
        **arguments: Further ones of the net.
    """
    v1, slim = tf.compat.v1, legacy.load("tf_slim")
    factory = legacy.load("nets.nets_factory")
    with legacy.session() as session:
        net = factory.get_network_fn(name, NUM_CLASSES, weight_decay=weight_decay)
        logits, end_points = net(tf.constant(images), **arguments)
        variables = slim.get_model_variables()
        session.run(v1.global_variables_initializer())
        session.run(_less_regular(variables))
        fetched = {"logits": logits, "decay": tf.add_n(v1.losses.get_regularization_losses())}
        if "AuxLogits" in end_points:
            fetched["auxiliary"] = end_points["AuxLogits"]
        found = session.run(fetched)
        prefix = str(folder / "slim.ckpt")
        v1.train.Saver(variables).save(session, prefix, write_meta_graph=False)
    return Outputs(checkpoint=prefix, **found)


def _less_regular(variables: list) -> list:
    """Returns what gives biases and statistics other values than zeros and ones."""
    draw = np.random.default_rng(1)
    return [
        variable.assign(
            draw.uniform(0.5, 1.5, variable.shape.as_list())
            if variable.op.name.endswith(("gamma", "moving_variance"))
            else draw.normal(0.0, 0.1, variable.shape.as_list()),
            read_value=False,
        )
        for variable in variables
        if len(variable.shape) == 1
    ]
