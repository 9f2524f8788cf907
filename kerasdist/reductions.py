"""Sums and means over the global batch, for losses that a program reduces by itself.

In a custom train_step or loss function, a sum or a mean runs over the examples of one replica,
and the result counts as a mean over them. These functions reduce over all replicas:

    loss = kerasdist.global_mean(losses, weights=mask)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


# They return a `tf.Tensor`. Its operators are unknown to type checkers, which would refuse to
# multiply it.
def global_sum(values: "tf.types.experimental.TensorLike") -> Any:
    """Returns the sum of all values of the global batch, over all replicas.

    Use it for a loss, or a number to be logged, that is a sum over the examples. It is
    differentiable: the step's gradient is that of the sum. Outside a step of `fit`, and on one
    device, it is `tf.reduce_sum`. Every replica must call it, because it sends a message.

    Args:
        values: Tensor [examples of this replica, ...]. Ints and bools, such as `y == predictions`,
            are cast to `keras.config.floatx()`. Floats keep their dtype: cast many float16 to
            float32 before, whose sums end at 65,504 and count by ones only to 2,048.

    Returns:
        Scalar of the dtype of `values`, or of what they are cast to, the same on every replica.

    Example:
        ```python
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = kerasdist.global_sum(tf.square(self(x, training=True) - y))
            ...
        ```
    """
    from kerasdist.training.losses import global_loss

    return global_loss.global_sum(values)


def global_mean(
    values: "tf.types.experimental.TensorLike",
    weights: "tf.types.experimental.TensorLike | None" = None,
) -> Any:
    """Returns the weighted mean of all values of the global batch, over all replicas.

    Use it for a loss that is divided by something other than the number of examples, such as the
    number of words that are not padding: a mean of the replicas' means would weight them wrongly.
    It is differentiable: the step's gradient is that of the mean. Outside a step of `fit`, and on
    one device, it is `sum(values * weights) / sum(weights)`. Every replica must call it, because it
    sends two messages.

    Args:
        values: Tensor [examples of this replica, ...]. Ints and bools, such as `y == predictions`,
            are cast to `keras.config.floatx()`. Floats keep their dtype: cast many float16 to
            float32 before, whose sums end at 65,504 and count by ones only to 2,048.
        weights: Tensor that broadcasts to `values`, such as a mask; None weights all
            equally. No gradient flows through their sum.

    Returns:
        Scalar of the dtype of `values`, or of what they are cast to, the same on every replica; 0
            if the weights add up to 0.

    Example:
        ```python
        def masked_loss(y, predictions):
            losses = keras.ops.sparse_categorical_crossentropy(y, predictions, from_logits=True)
            return kerasdist.global_mean(losses, weights=y != 0)
        ```
    """
    from kerasdist.training.losses import global_loss

    return global_loss.global_mean(values, weights)
