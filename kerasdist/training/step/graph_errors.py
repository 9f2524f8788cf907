"""Says in our words what an error from inside a compiled step means."""

import itertools
import re
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts
from kerasdist.training.step import variable_creation

# TensorFlow adds colors and names of operations to what an operation says.
_CLUTTER = re.compile(r"\x1b\[\d+m|\{\{.*?\}\} ?|\[Op:\w+\]( name:)?")
# Errors whose reason can be that a step has a part of the batch, and their words.
_OF_SHAPES = (ValueError, IndexError, tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)
_SHAPES = re.compile(
    r"\b(shaped?|shapes|reshape|dim|dims|dimensions?|ranks?|sizes?|length|axis|axes|broadcast\w*|"
    r"concat\w*|columns?|rows?|indices|index|out of (bounds|range))\b",
    re.IGNORECASE,
)

MEMORY_OF_WHOLE_BATCH = (
    "Each replica computes the whole batch; a warning has given the reason. Change what it names, "
    "so that each replica gets its part of the batch, or make the batch smaller."
)


def in_a_line(error: Exception) -> str:
    """Returns an error as its class and the first line that says something."""
    if isinstance(error, AssertionError) and str(error).startswith("len(v) == "):
        # TensorFlow says so where replicas do not meet with the same tensors.
        return (
            "one replica sends gradients or other numbers where another one sends none, as after a "
            "condition on its own examples."
        )
    lines = (_CLUTTER.sub("", line).strip() for line in str(error).splitlines())
    # Keras names the layer first, and the cause below.
    telling = (line for line in lines if line and not line.startswith("Exception encountered when"))
    # None of an `assert` without a message.
    return ": ".join([type(error).__name__, *itertools.islice(telling, 1)])


def describe_error(error: Exception) -> str:
    """Returns in words what a part of a batch has ended with, and the whole batch has not."""
    return f"it ends with {in_a_line(error)}"


def describe_unchecked(what: str, error: Exception) -> str:
    """Returns in words that a check has failed, and how to compare by oneself.

    Args:
        what: What was to be checked, as in "3 replicas predict what one device does".
        error: What the program has raised.
    """
    return (
        f"Could not check that {what}: {in_a_line(error).rstrip('.')}. The results may differ. "
        "`python -m kerasdist doctor -- python SCRIPT` compares some steps with those of one "
        "device."
    )


def describe_failure(
    error: Exception, model: keras.Model, step: Any, differing: str | None = None
) -> str:
    """Returns in words that a step fails with parts of a batch, and not with all of it.

    Args:
        error: What it raised with a part.
        model: See `of_parts`.
        step: See `of_parts`.
        differing: See `of_parts`.
    """
    told = of_parts(error, model, step, differing)
    if told is not error:
        return str(told)
    line = in_a_line(error).rstrip(".")
    return f"The step fails with a part of the batch, and not with all of it: {line}."


def of_parts(
    error: Exception, model: keras.Model, step: Any, differing: str | None = None
) -> Exception:
    """Returns an error of a step on several replicas, with what each replica was given.

    Args:
        error: What a program raised that may be right for the whole batch.
        model: The model of the step.
        step: Its train_step or test_step.
        differing: How the tensors of the batch differ in their first axis; None where they do not.
    """
    if differ := variable_creation.difference_found():
        return differ
    number = model.distribute_strategy.num_replicas_in_sync
    inputs = getattr(model, "inputs", None) or ()
    sizes = {each.shape[0] for each in inputs if each.shape and each.shape[0]}
    size = next((each for each in sizes if re.search(rf"\b{each}\b", str(error))), None)
    # Whatever else fails says nothing of the size.
    is_of_shapes = isinstance(error, _OF_SHAPES)
    if size is not None and is_of_shapes:
        return ValueError(
            f"Model '{model.name}' is made for batches of {size} examples, and each of {number} "
            "replicas is given its part of the batch. Leave the size out (`keras.Input(shape)` "
            "without `batch_size` or `batch_shape`). Where layers need it (`stateful=True`), it is "
            f"that of one replica: train with batches of {number * size}, or build the model for "
            "the batch size of one replica."
        )
    if "called while defining a new graph" in str(error):
        return RuntimeError(
            f"{step.__name__} of '{model.name}' calls `optimizer.apply` inside a `tf.cond`, a "
            f"loop or a `tf.function`. There {number} replicas would add up their gradients, which "
            "TensorFlow cannot do inside of one. Call `tape.gradient` outside of it, which gives "
            "the gradient of the whole batch; `optimizer.apply` may then be inside. To add up "
            "several batches there is `kerasdist.callbacks.GradientAccumulation(steps)`."
        )
    is_of_shapes = is_of_shapes and _SHAPES.search(str(error)) is not None
    if is_of_shapes and differing:
        return ValueError(differing)
    is_own = not custom_parts.is_original_step(step) or custom_parts.has_custom_parts(model)
    if is_of_shapes and is_own:
        error.add_note(
            f"On {number} replicas, {step.__name__} of '{model.name}' runs on each of them with a "
            "part of the batch, which is divided along the first axis. A number of examples that "
            "the program needs is that of a part, `tf.shape(x)[0]`. Data whose first axis does not "
            "count examples trains on one device only."
        )
    return error
