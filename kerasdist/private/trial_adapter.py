"""Runs a step as a trial: eagerly, with draws that are alike, and undone.

A trial runs a step eagerly, with random numbers that are alike everywhere, and leaves nothing
behind (`kerasdist.training.trial.choose`). Importing this file changes nothing.

tests/private/test_trial_adapter.py and tests/training/trial/test_fit.py fail when one of
these names moves. Written against TensorFlow 2.20 and 2.21.
"""

import contextlib
import inspect
import itertools
import random
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, def_function, record
from tensorflow.python.eager.polymorphic_function import eager_function_run, polymorphic_function
from tensorflow.python.ops import (
    cond,
    gen_nn_ops,
    gen_resource_variable_ops,
    gen_state_ops,
    gen_stateful_random_ops,
    while_loop,
)

from kerasdist.private import call_adapter, names
from kerasdist.support import memory

# TensorFlow's functions behind every assignment, where each operation runs at once; see
# `assignments_undone`. The last ones move a `tf.random.Generator` on.
ASSIGNMENTS = re.compile(
    r"(assign|assign_add|assign_sub)_variable_op|resource_scatter_[a-z_]+|rng_(read_and_)?skip"
)


@contextlib.contextmanager
def alike_draws() -> Generator[Callable[[], None]]:
    """Makes random numbers the same for every example and on every replica; for eager operations.

    The numbers of a draw differ along all axes but the first, and but the first of what says how
    they are distributed: both may be examples. What is shuffled, or sorted by such numbers, is
    turned round: then an example meets others, and in a share not the same ones as in the whole
    batch. TensorFlow's generator is put back at the end; Python's and numpy's are for the caller to
    keep. For what is traced there is `kerasdist.training.replica.draws`.

    Yields:
        A function that each replica calls first.
    """
    generator = getattr(context.context(), "_rng", None)  # Made by the first seed.
    state = generator.getstate() if generator else None

    def start():
        memory.THREAD.num_draws = itertools.count()  # Replicas take turns.
        random.seed(0)
        np.random.seed(0)

    def draw(original: Any, *args: Any, **kwargs: Any):
        drawn = original(*args, **kwargs)
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        fractions = _fractions(_shape_of_one(drawn.shape, given), next(memory.THREAD.num_draws))
        row = _numbers(original.__name__, fractions, drawn.dtype, given)
        return tf.broadcast_to(tf.cast(row, drawn.dtype), drawn.shape)

    replaced = {
        (module, name): _reversed if name.endswith("shuffle") else draw
        for module, name in call_adapter.draws()
        if name != "rng_read_and_skip"  # It returns a state, and no numbers.
    }
    # Behind each sort and top_k.
    replaced[gen_nn_ops, "top_kv2"] = _sorted
    try:
        with names.replaced(replaced):
            yield start
    finally:
        if generator:
            generator.setstate(state)


def _reversed(original: Callable, value: Any, *args: Any, **kwargs: Any):
    """Stands before a shuffle along the first axis."""
    return tf.reverse(value, [0])


def _sorted(original: Callable, input: Any, *args: Any, **kwargs: Any):
    """Stands before a sort along the last axis: what is all the same comes in reverse order.

    As random numbers that are alike for all examples, by which their order would stay.
    """
    found = original(input, *args, **kwargs)
    is_same = tf.reduce_all(tf.equal(input, input[..., :1]), axis=-1, keepdims=True)
    last = tf.cast(tf.shape(input)[-1] - 1, found.indices.dtype)
    return found._replace(indices=tf.where(is_same, last - found.indices, found.indices))


def _fractions(shape: Any, seed: int) -> np.ndarray:
    """Returns different numbers between 0 and 1."""
    positions = np.arange(np.prod(shape, dtype=int))
    return np.reshape(np.modf(0.37 + 0.618 * seed + 0.755 * positions)[0], shape)


def _shape_of_one(shape: Any, given: Mapping[str, Any]) -> list[int]:
    """Returns the shape of what is drawn, with 1 for the axes that may be those of examples."""
    names_of_parameters = ("alpha", "rate", "lam", "counts")
    num_axes = max(np.ndim(given.get(name, 0.0)) for name in names_of_parameters)
    of_examples = (0, len(shape) - num_axes)  # The axes of parameters are the last ones.
    return [1 if axis in of_examples else size for axis, size in enumerate(shape)]


def _numbers(function: str, fractions: np.ndarray, dtype: tf.DType, given: Mapping[str, Any]):
    """Returns numbers such as a function draws, made of fractions.

    Whole ones do not depend on what a model computes: with the rounding of another batch, some
    would be others.
    """
    if "normal" in function:
        return 1.4 * np.sin(2 * np.pi * fractions)
    if "gamma" in function:  # It has a gradient.
        return tf.cast(2 * fractions, dtype) * given["alpha"]
    if "multinomial" in function:
        return np.floor(fractions * np.shape(given["logits"])[-1])
    if "poisson" in function or "binomial" in function:
        return np.floor(2 * fractions)
    if dtype.is_floating:
        return fractions
    low, high = (int(given.get(*bound)) for bound in (("minval", dtype.min), ("maxval", dtype.max)))
    return low + np.floor(fractions * (high - low))


@contextlib.contextmanager
def assignments_undone() -> Generator[None]:
    """Gives every variable that is assigned inside its value back; for eager operations.

    One that is made inside, as those of compiled metrics, gets its first value back.
    """
    before: dict = {}

    def assign(original: Callable, handle: Any, *args: Any, **kwargs: Any):
        if handle is not None and id(handle) not in before:
            value = _value_of(handle)
            if value is not None:
                before[id(handle)] = handle, value
        return original(handle, *args, **kwargs)

    keys = [
        (module, name)
        for module in (gen_resource_variable_ops, gen_state_ops, gen_stateful_random_ops)
        for name in vars(module)
        if ASSIGNMENTS.fullmatch(name) and not name.endswith("_eager_fallback")
    ]
    try:
        with names.replaced(dict.fromkeys(keys, assign)):
            yield
    finally:
        for handle, value in before.values():
            gen_resource_variable_ops.assign_variable_op(handle, value)


def _value_of(handle: Any):
    """Returns what a variable holds; None for one that is being made."""
    if not gen_resource_variable_ops.var_is_initialized_op(handle):
        return None
    dtype = handle._handle_data.shape_and_type[0].dtype
    with record.stop_recording():
        return gen_resource_variable_ops.read_variable_op(handle, dtype)


@contextlib.contextmanager
def inner_graphs_entered(enter: Callable[[], contextlib.AbstractContextManager]) -> Generator[None]:
    """Enters a context around what would be traced into a graph of its own; for eager operations.

    Conditions and loops run then as if they were Python's. For functions there is
    `kerasdist.training.step.inner_functions`.

    Args:
        enter: Returns the context.
    """

    def run(original: Callable, *args: Any, **kwargs: Any):
        with enter():
            return original(*args, **kwargs)

    with names.replaced({(cond, "cond"): run, (while_loop, "while_loop"): run}):
        yield


@contextlib.contextmanager
def functions_run_eagerly() -> Generator[None]:
    """Runs every `tf.function` operation by operation, in this thread and those of its replicas.

    `tf.config.run_functions_eagerly` would do so to a training in another thread, too.
    """
    is_on = True

    def get(*_: Any):
        return is_on

    def put(
        original: Callable, run_eagerly: bool
    ):  # `tf.vectorized_map` does, as it needs a graph.
        nonlocal is_on
        is_on = bool(run_eagerly)

    replaced: dict = {(polymorphic_function.Function, "_run_functions_eagerly"): get}
    for module in (eager_function_run, def_function):
        replaced[module, "functions_run_eagerly"] = get
        replaced[module, "run_functions_eagerly"] = put
    with names.replaced(replaced):
        yield
