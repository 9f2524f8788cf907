"""The first batch of `predict`, rehearsed: do the replicas' outputs say what one device says?

Each replica predicts its part of a batch, and the outputs are joined along their first axis. That
is wrong for what has no row for each example, such as a matrix of weights, and for a row that is
computed from other examples, too. As before the first step (`rehearsal`), a few examples are
predicted twice, operation by operation: all of them by one replica, and divided.

No worker speaks to another: each predicts all data, and decides by itself.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_threads, trial_adapter
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.step import graph_errors
from kerasdist.training.trial import (
    compare,
    dry_runs,
    few_examples,
    nearby_weights,
    rehearsed_run,
    tolerances,
)
from kerasdist.training.trial.output_sizes import OutputSizes


def describe_difference(model, step: Callable, predict_parts: Callable, batch) -> str | None:
    """Returns in words what is not the same where replicas predict parts of a batch, or None.

    Args:
        model: A model whose variables exist.
        step: Its predict_step.
        predict_parts: Called with a function that takes the place of `step`, and a batch; returns
            the joined outputs of the replicas.
        batch: The first batch, of two examples or more: tensors [examples, ...].
    """
    num_local = len(peers.local_replicas(model.distribute_strategy))
    sizes = OutputSizes()
    examples = few_examples.of(batch, "few", num_local)
    with sizes.counted(model):
        found = _describe_with(model, step, predict_parts, examples)
    if found or not few_examples.may_be_most(batch, num_local, sizes):
        return found
    examples = few_examples.of(batch, "most", num_local)
    return _describe_with(model, step, predict_parts, examples)


def _describe_with(model, step: Callable, predict_parts: Callable, batch) -> str | None:
    with dry_runs.without_traces(model):
        whole, nearly = _predict_whole(model, step, batch)
        try:
            joined = _predict_divided(step, predict_parts, batch)
        except Exception as error:  # The whole batch may be right for what a part is not.
            return graph_errors.describe_error(error)
    return _describe(*map(_arrays_of, (whole, nearly, joined)), tolerances.of_gradients(model))


def _predict_whole(model, step, batch) -> tuple:
    """Returns what a replica gives for the whole batch, and for one that differs by rounding."""
    strategy = model.distribute_strategy
    first, *others = peers.local_replicas(strategy)
    size = batches.num_examples(batch)
    touched = few_examples.touched(batch)
    data = (batch, *[touched] * len(others))
    outputs = [None] * len(data)
    shares = batches.Shares(data=data, counts=[size] * len(data), total=size, may_be_empty=False)

    def run(share):
        if share is touched:
            nearby_weights.move(model, tolerances.LAST_BITS)
        outputs[peers.replica_id() - first] = step(share)

    rehearsed_run.rehearse(strategy, run, shares, is_whole=True)
    return outputs[0], outputs[1]


def _predict_divided(step, predict_parts, batch):
    keras_state = keras_threads.thread_state()
    with (
        trial_adapter.assignments_undone(),
        trial_adapter.alike_draws() as start,
    ):

        def run(share):
            keras_threads.inherit(keras_state)
            start()
            return step(share)

        return predict_parts(run, batch)


def _arrays_of(outputs) -> dict[tuple, np.ndarray]:
    """Returns the arrays in outputs by their paths; of ragged and sparse ones their parts."""
    return {
        (*path, position): np.asarray(tf.convert_to_tensor(part))
        for path, leaf in keras.tree.flatten_with_path(outputs)
        for position, part in enumerate(tf.nest.flatten(leaf, expand_composites=True))
        if part is not None
    }


def _describe(wholes: dict, nearlies: dict, joineds: dict, tolerance: float) -> str | None:
    for path, whole in wholes.items():
        name = "an output" if len(path) == 1 else f"output {list(path[:-1])}"
        joined = joineds.get(path)
        if joined is None or joined.shape != whole.shape:
            shape = None if joined is None else joined.shape
            return f"of a few examples {name} has the shape {shape}, on one device {whole.shape}"
        nearly = nearlies.get(path)
        if compare.outputs_differ(whole, whole if nearly is None else nearly, joined, tolerance):
            return f"the numbers of {name} are others"
    return None
