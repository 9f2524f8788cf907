"""Finds data, losses and metrics that cannot give a right number, before they change a weight."""

import keras
import tensorflow as tf

from kerasdist.training import graph_errors, keras_adapter


def assert_finite_labels(model, batch, *, is_first) -> list:
    """Returns checks that the labels and sample weights of the first batch are numbers.

    Losses of the user's own may give NaN a meaning, so only Keras' losses are guarded.

    Args:
        model: A compiled model.
        batch: The global batch, (x, y) or (x, y, sample_weight), distributed or not.
        is_first: bool scalar; later batches are not looked at.

    Raises:
        tf.errors.InvalidArgumentError: From the returned operation, when it runs.
    """
    if not isinstance(batch, (tuple, list)) or not keras_adapter.has_stock_losses(model):
        return []
    return [
        tf.cond(is_first, lambda leaf=leaf, text=text: _check(leaf, text), lambda: False)
        for text, part in zip(_MESSAGES, batch[1:3], strict=False)
        for distributed in tf.nest.flatten(part)
        for leaf in model.distribute_strategy.experimental_local_results(distributed)
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
    ]


def check_loss_shape(values, num_examples) -> None:
    """Checks that a loss has one value (or more) for each example, or is a scalar.

    Without the batch axis, the losses of several replicas cannot be weighed by their examples.

    Raises:
        ValueError: The first axis is known not to be the batch; names the loss.
    """
    is_open = not isinstance(num_examples, int)
    size = values.shape[0] if values.shape.rank else None
    if size is not None and (is_open or size != num_examples):
        # Keras opens a name scope with the name of the loss around its call.
        name = tf.get_current_name_scope().rpartition("/")[2]
        raise ValueError(
            f"Loss '{name}' returned shape {tuple(values.shape)} for a batch of "
            f"{'any number of' if is_open else num_examples} examples. Return one loss per "
            "example, [batch, ...], or a scalar: the mean over the batch."
        )


def check_metrics(model, logs) -> None:
    """Checks that the results of the user's own metrics are scalars, or dicts of scalars.

    Some of Keras' metrics return a value for each class, which is left to them.

    Raises:
        ValueError: One is not; names it.
    """
    for name, value in logs.items():
        if isinstance(value, dict):
            check_metrics(model, value)
        elif keras.ops.ndim(value) > 0 and name not in keras_adapter.stock_metric_names(model):
            raise ValueError(
                f"Metric '{name}' returned shape {tuple(value.shape)} from `result()`. Return a "
                "scalar, or a dict of scalars with a name for each."
            )


def _check(leaf, message):
    with tf.control_dependencies([tf.debugging.assert_all_finite(leaf, message)]):
        return tf.constant(False)


_MESSAGES = tuple(
    graph_errors.message(
        ValueError,
        f"The {part} of the first batch hold NaN or infinity. No weight was changed. Look at "
        "the data, for example with `dataset.take(1)`.",
    )
    for part in ("labels", "sample weights")
)
