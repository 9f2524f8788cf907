"""Sums and means over the global batch, for losses that a program reduces by itself.

In a train_step or a loss function of one's own, a sum or a mean runs over the examples of one
replica, and what comes of it counts as a mean over them. These run over all replicas:

    loss = kerasdist.global_mean(losses, weights=mask)
"""


def global_sum(values):
    """Returns the sum of all values of the global batch, over all replicas.

    For a loss, or a number to be logged, that is a sum over the examples. It is differentiable: the
    step's gradient is that of the sum. Outside a step of `fit`, and on one device, it is
    `tf.reduce_sum`. Every replica must call it: it sends a message.

    Args:
        values: Floating-point tensor [examples of this replica, ...].

    Returns:
        Scalar of the same dtype, the same on every replica.

    Example:
        ```python
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = kerasdist.global_sum(tf.square(self(x, training=True) - y))
            ...
        ```
    """
    from kerasdist.training.step import global_loss

    return global_loss.global_sum(values)


def global_mean(values, weights=None):
    """Returns the weighted mean of all values of the global batch, over all replicas.

    For a loss that is divided by something of its own, such as the number of words that are no
    padding; a mean of the replicas' means would weigh them wrong. It is differentiable: the step's
    gradient is that of the mean. Outside a step of `fit`, and on one device, it is
    `sum(values * weights) / sum(weights)`. Every replica must call it: it sends two messages.

    Args:
        values: Floating-point tensor [examples of this replica, ...].
        weights: Tensor that broadcasts to `values`, such as a mask; None weighs all alike. No
            gradient flows through their sum.

    Returns:
        Scalar of the dtype of `values`, the same on every replica; 0 where the weights sum up to 0.

    Example:
        ```python
        def masked_loss(y, predictions):
            losses = keras.ops.sparse_categorical_crossentropy(y, predictions, from_logits=True)
            return kerasdist.global_mean(losses, weights=y != 0)
        ```
    """
    from kerasdist.training.step import global_loss

    return global_loss.global_mean(values, weights)
