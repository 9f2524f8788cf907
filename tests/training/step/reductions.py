"""Losses of users, reduced in ways that are those of one device and in ways that are not."""

from typing import Any

import numpy as np
import tensorflow as tf

import kerasdist
from tests.warned import warned_by

RNG = np.random.default_rng(3)
X = RNG.normal(size=(64, 3)).astype("float32")
Y = RNG.normal(size=(64, 2)).astype("float32")


def mean(losses, outputs, x):
    return tf.reduce_mean(losses)


def whole_sum(losses, outputs, x):
    return tf.reduce_sum(losses)


def masked_mean(losses, outputs, x):
    mask = tf.cast(x[:, 0] > 0, losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def global_masked_mean(losses, outputs, x):
    return kerasdist.global_mean(losses, weights=x[:, 0] > 0)


def contrast(losses, outputs, x):
    similarities = tf.matmul(outputs, outputs, transpose_b=True)
    return -tf.reduce_mean(tf.linalg.diag_part(tf.nn.log_softmax(similarities)))


def contrast_with_all(losses, outputs, x):
    context: Any = tf.distribute.get_replica_context()
    others = context.all_gather(outputs, axis=0)
    return tf.reduce_mean(tf.square(outputs[:, tf.newaxis] - others))


def warnings_of_fit(model, **arguments) -> list[str]:
    # Shuffled, the replicas' shares could have masks of equal size.
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **arguments}
    texts = warned_by(lambda: model.fit(X, Y, **options))
    return [each for each in texts if "whole batch" in each or "Could not check" in each]
