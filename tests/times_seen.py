"""A metric that tells whether each example of an epoch was read once."""

import keras
import tensorflow as tf


class TimesSeen(keras.metrics.Metric):
    """How often the example that was seen least, and most, was seen; and how many in all.

    The label of an example is its number.

    Args:
        num_examples: Examples of the data.
    """

    def __init__(self, num_examples: int):
        super().__init__(name="times_seen")
        self.counts = self.add_weight(shape=(num_examples,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        indices = tf.cast(y_true[:, 0], tf.int32)
        seen = tf.math.bincount(indices, minlength=self.counts.shape[0], dtype=tf.float32)
        self.counts.assign(self.counts + seen)

    def result(self):
        counts = tf.convert_to_tensor(self.counts)
        return {
            "fewest": tf.reduce_min(counts),
            "most": tf.reduce_max(counts),
            "all": tf.reduce_sum(counts),
        }
