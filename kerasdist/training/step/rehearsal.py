"""The first step, rehearsed: is its gradient the one that the whole batch gives on one device?

On several replicas a loss counts as a mean over its examples. A program that sums, divides by
something of its own or compares examples with each other means something else, and nothing in its
code says so. Before the first step that is not all Keras', some examples go through it twice,
operation by operation: all of them on every replica, and divided over the replicas. Random numbers
are made alike, and nothing that is assigned stays. Where the gradients differ, a warning says so.
"""

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Callable, Generator

import numpy as np
import tensorflow as tf

from kerasdist.private import keras_adapter
from kerasdist.training import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.step import batch_statistics, replica_step

# Enough for masks and weights to differ between replicas; a step of so few costs little.
_EXAMPLES_PER_REPLICA = 8
# Of a gradient's norm: far above rounding, far below what a wrong divisor makes.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-3, 5e-2
# Of the norm of all gradients: what is smaller may be rounding, as that of a bias before a layer
# that subtracts the mean.
_NEGLIGIBLE = 1e-2
# Of the norm: the shares are not equal, so that a sum is not a mean times a number to the last bit.
_TOLERANCE_OF_SUM = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Where the gradient over the replicas is not that of the whole batch.

    Attributes:
        variable: Path of the variable whose gradient differs most.
        difference: Norm of the difference over the norm of the larger gradient, of that variable.
        is_sum: Whether all gradients would have to be multiplied by the number of replicas, about.
    """

    variable: str
    difference: float
    is_sum: bool


def is_due(model) -> bool:
    """Whether a step of `model` can mean something else than Keras' own do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.keeps_own_pace(strategy):
        return False
    return keras_adapter.has_own_layers(model) or not keras_adapter.has_stock_losses(model)


def warn_of_differences(model, step: Callable, batch) -> None:
    """Rehearses a step and warns where its gradient is not that of the whole batch.

    Args:
        model: A compiled model whose variables exist.
        step: Its train_step, called with the data of a replica.
        batch: The first global batch: tensors [examples, ...].
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    try:
        finding = rehearse(model, step, batch)
    except Exception as error:  # Of the program, which may mean no other batch than its own.
        warnings.warn(
            f"Whether the gradient over {num_replicas} replicas is that of the whole batch on one "
            f"device could not be seen: {type(error).__name__}: {str(error).splitlines()[0]}",
            stacklevel=2,
        )
        return
    if finding:
        warnings.warn(_describe(finding, num_replicas), stacklevel=2)


def rehearse(model, step: Callable, batch) -> Finding | None:
    """Returns where the gradient over the replicas differs from that of the whole batch, or None.

    Args: those of `warn_of_differences`.
    """
    strategy = model.distribute_strategy
    batch = _some_of(batch, _EXAMPLES_PER_REPLICA * strategy.num_replicas_in_sync - 1)
    size = batches.num_examples(batch)
    copies = len(peers.local_replicas(strategy))
    whole = batches.Shares(
        data=(batch,) * copies, counts=[size] * copies, total=size, may_be_empty=False
    )
    with _without_traces(model):
        expected = replica_step.rehearse(strategy, step, whole, is_whole=True)
        shares = batches.shares_of(batch, strategy)
        found = replica_step.rehearse(strategy, step, shares, is_whole=False)
    is_short = model.compute_dtype in ("float16", "bfloat16")
    tolerance = _TOLERANCE_OF_16_BITS if is_short else _TOLERANCE
    return _compare(expected, found, tolerance, strategy.num_replicas_in_sync)


def _some_of(batch, number: int):
    """Returns the first examples of a batch, so many that the replicas' shares are not equal."""

    def some(leaf):
        return (
            leaf
            if getattr(leaf, "shape", None) is None or leaf.shape.rank == 0
            else (batches.rows(leaf, 0, min(number, batches.num_examples(leaf))))
        )

    return tf.nest.map_structure(some, batch)


@contextlib.contextmanager
def _without_traces(model) -> Generator[None]:
    """Runs what is inside operation by operation, and leaves no trace of it."""
    # A difference that has a warning of its own.
    layers = batch_statistics.unsynchronized_layers(model)
    logger = tf.get_logger()
    level, runs_eagerly = logger.level, tf.config.functions_run_eagerly()
    for layer in layers:
        layer.synchronized = True
    logger.setLevel(logging.ERROR)  # "Using MirroredStrategy eagerly has significant overhead".
    # What is traced here would be found again in the steps that count.
    tf.config.run_functions_eagerly(True)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            tf.summary.record_if(False),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        tf.config.run_functions_eagerly(runs_eagerly)
        logger.setLevel(level)
        for layer in layers:
            layer.synchronized = False


def _compare(expected: list, found: list, tolerance: float, num_replicas: int) -> Finding | None:
    pairs = [
        (variable, _as_array(whole), _as_array(shared))
        for (variables, wholes), (_, shareds) in zip(expected, found, strict=False)
        for variable, whole, shared in zip(variables, wholes, shareds, strict=True)
        if whole is not None and shared is not None
    ]
    if not pairs:
        return None
    norm = max(_norm([whole for _, whole, _ in pairs]), _norm([shared for *_, shared in pairs]))
    differences = {
        variable.path: _norm([whole - shared])
        / max(_norm([whole]), _norm([shared]), _NEGLIGIBLE * norm, np.finfo("float32").tiny)
        for variable, whole, shared in pairs
        if np.isfinite(whole).all() or np.isfinite(shared).all()
    }
    if not differences:  # On one device they are not finite either.
        return None
    worst = max(differences, key=lambda path: np.nan_to_num(differences[path], nan=np.inf))
    if differences[worst] <= tolerance:
        return None
    wholes = np.concatenate([whole.ravel() for _, whole, _ in pairs])
    shareds = np.concatenate([shared.ravel() for *_, shared in pairs])
    return Finding(
        variable=worst,
        difference=float(differences[worst]),
        is_sum=_norm([wholes - num_replicas * shareds]) <= _TOLERANCE_OF_SUM * _norm([wholes]),
    )


def _as_array(gradient) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(gradient), "float64")


def _norm(arrays) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))


def _describe(finding: Finding, num_replicas: int) -> str:
    text = (
        f"The gradient over {num_replicas} replicas is not the one that the whole batch gives on "
        f"one device: it differs by {finding.difference:.0%} (of '{finding.variable}'). Each "
        "replica computes the loss of its own examples, which counts as a mean over them. "
    )
    if finding.is_sum:
        return text + (
            f"On one device it is about {num_replicas} times as large, so the loss seems to be a "
            "sum over the examples. Sum with `kerasdist.global_sum(values)`, or divide by the "
            "number of examples."
        )
    return text + (
        "A mean with a divisor of its own, such as the sum of a mask, is "
        "`kerasdist.global_mean(values, weights=mask)`, and a sum `kerasdist.global_sum(values)`. "
        "A loss that compares examples with each other compares those of one replica only."
    )
