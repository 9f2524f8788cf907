"""The floating-point operations of a forward pass with one example."""

from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import scopes


def specs_of(data: Any) -> Any:
    """Returns the `tf.TensorSpec` of one example of each input in a batch (x, y, sample_weight).

    Args:
        data: What a train_step gets. One that Keras cannot take apart is all inputs.
    """
    try:
        inputs, *_ = keras.utils.unpack_x_y_sample_weight(data)
    except ValueError:
        inputs = data
    return tf.nest.map_structure(_spec_of, inputs)


def forward_flops(model: keras.Model, specs: Any) -> float:
    """Returns the operations of a forward pass of a model that is built.

    Args:
        model: Its own inputs count if all their sizes are known.
        specs: Otherwise of its inputs, from `specs_of`.

    Raises:
        ValueError: Sizes are unknown, or the model cannot be called with such inputs.
    """
    own = [_spec_of(each) for each in getattr(model, "inputs", None) or ()]
    if own and _are_known(own):
        specs = own[0] if len(own) == 1 else own
    elif not _are_known(specs):
        raise ValueError("its inputs have no fixed sizes")
    try:
        with scopes.outside_scopes():
            graph = tf.function(lambda inputs: model(inputs)).get_concrete_function(specs).graph
    except Exception as error:  # Its train_step may never call it, or with something else.
        raise ValueError(f"it cannot be called with x ({type(error).__name__})") from error
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops


def _spec_of(leaf: Any) -> tf.TensorSpec | None:
    if leaf is None:
        return None
    shape = tf.TensorShape(leaf.shape)
    return tf.TensorSpec(shape if shape.rank is None else [1, *shape[1:]], leaf.dtype)


def _are_known(specs: Any) -> bool:
    return all(leaf is None or leaf.shape.is_fully_defined() for leaf in tf.nest.flatten(specs))
