"""The function that `predict` calls for every batch."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_layers
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.hooks import xla
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.step import graph_errors, variable_creation


class PredictFunction:
    """Runs a model's predict_step over the replicas of this worker.

    Each of several workers predicts the whole data and returns all of it, so that one of them can
    call `predict` alone.

    An output without axes is taken for a mean over the examples, such as a loss: it is that of the
    replicas, weighed by their examples. What is computed from weights alone is so, too. One that is
    no floating point number is that of the first replica.

    Where a model is not of Keras' parts alone, the first batch shows whether the replicas' outputs
    are those of one device (`trial.predict`). If not, or if one fails with its part of a
    batch, a replica predicts whole batches.

    Args:
        model: A model of one of our strategies.
        describe_difference: That of `trial.predict`.
    """

    def __init__(self, model: keras.Model, *, describe_difference: Callable):
        self._model, self._describe_difference = model, describe_difference
        self._strategy = model.distribute_strategy
        self._step = model.predict_step
        self._is_compiled = bool(model.jit_compile)
        self._is_divided = len(peers.local_replicas(self._strategy)) > 1
        self._is_check_due = self._is_divided and not custom_parts.predicts_each_example_alone(
            model
        )
        self._run = self._compiled(self._predict)

    def restart(self) -> None:
        """Begins a `predict`, to which an earlier one has left nothing."""

    def __call__(self, data: list):
        """Returns the outputs of a list of global batches as one structure of tensors."""
        outputs = [
            self._run_batch(batches.as_tensors(batches.without_optionals(each))) for each in data
        ]
        return outputs[0] if len(outputs) == 1 else joined(*outputs)

    def _compiled(self, method: Callable):
        return method if self._model.run_eagerly else graph_function(method, reduce_retracing=True)

    def _run_batch(self, batch: Any):
        unchecked = None
        if self._is_check_due:
            unchecked = self._check(batches.in_one_piece(batch, self._strategy))
        try:
            outputs = self._run(batch)
        except Exception as error:  # The program may raise anything. It is told, or raised again.
            if self._is_compiled and self._strategy.num_replicas_in_sync > 1:
                self._give_up_xla(error)
                return self._run_batch(batch)
            if not self._is_divided:
                raise
            return self._run_whole(batch, error)
        if unchecked:
            warn(unchecked)
        return outputs

    def _run_whole(self, batch: Any, error: Exception):
        """Lets one replica predict whole batches, after an error with the parts of one.

        Where the whole batch ends with an error as well, it is the program's.
        """
        self._divide(False)
        try:
            outputs = self._run(batch)
        except Exception:  # The program may raise anything; its first error is raised.  # noqa: BLE001
            self._divide(True)
            raise error from None
        difference = graph_errors.describe_error(error)
        warn(self._describe(difference))
        return outputs

    def _give_up_xla(self, error: Exception) -> None:
        """Lets replicas predict without XLA, which cannot compile what each of them computes."""
        self._is_compiled = False
        self._run = self._compiled(self._predict)
        told = str(error).strip().partition("\n")[0]
        xla.tell_that_off(self._model, f"`predict` ends with {type(error).__name__} ({told})")

    def _divide(self, is_divided: bool) -> None:
        self._is_divided = is_divided
        self._run = self._compiled(self._predict)

    def _check(self, batch: Any) -> str | None:
        """Looks whether the replicas can divide batches; they cannot divide one example.

        Returns:
            In words that nobody knows, of which a step that fails says more; None in all else.
        """
        if batches.num_examples(batch) < 2 or not self._make_variables(batch):
            return None
        self._is_check_due = False
        arguments = self._model, self._step, self._predict_parts, batch
        try:
            difference = self._describe_difference(*arguments)
        except Exception as error:  # The program may mean no other batch than its own. It is told.  # noqa: BLE001
            number = len(peers.local_replicas(self._strategy))
            what = f"{number} replicas predict what one device does"
            return graph_errors.describe_unchecked(what, error)
        if difference:
            self._divide(False)
            warn(self._describe(difference))
        return None

    def _make_variables(self, batch: Any) -> bool:
        """Makes the variables of the model as the first batch would; returns whether it has."""
        if keras_layers.is_built(self._model):
            return True
        try:
            trace = self._run if self._model.run_eagerly else self._run.get_concrete_function
            trace(batch)
        except Exception:  # It may be right for the whole batch. If not, it is raised there.  # noqa: BLE001
            return keras_layers.is_built(self._model)
        return True

    def _describe(self, difference: str) -> str:
        number = len(peers.local_replicas(self._strategy))
        return (
            f"What '{self._model.name}' predicts is not what one device does where each of "
            f"{number} replicas is given a part of the batch: {difference}. So one replica "
            "predicts each batch, as a whole, and the others do not help. They do where all "
            "outputs have a row for each example, which is computed from this example alone."
        )

    def _predict(self, batch: Any):
        if self._is_divided:
            return self._predict_parts(self._run_step, batch)
        batch = batches.in_one_piece(batch, self._strategy)
        # Nothing is used of what the others compute in a graph, so that it does not run.
        with variable_creation.made_at_once(self._strategy):
            outputs = peers.on_replicas(self._strategy, lambda: self._run_step(batch))
        return self._strategy.experimental_local_results(outputs)[0]

    def _run_step(self, data: Any):
        """Runs the predict_step on a replica; XLA compiles it where it makes no variable."""
        if not self._is_compiled or tf.executing_eagerly() or not self._makes_no_variable():
            return self._step(data)
        return graph_function(self._step, jit_compile=True)(data)

    def _makes_no_variable(self) -> bool:
        # On one device a function may make them.
        is_one_device = self._strategy.num_replicas_in_sync == 1
        return is_one_device or keras_layers.is_built(self._model)

    def _predict_parts(self, step: Callable, batch: Any):
        replicas = peers.local_replicas(self._strategy)
        shares = batches.local_shares_of(batch, self._strategy)
        counts = batches.local_counts_of(batch, self._strategy)

        def replica_fn():
            return step(shares[peers.replica_id() - replicas[0]])

        with variable_creation.made_at_once(self._strategy):
            outputs = peers.on_replicas(self._strategy, replica_fn)
        # A step may return Python's numbers where the trace knows the sizes.
        outputs = map(batches.as_tensors, self._strategy.experimental_local_results(outputs))
        return tf.nest.map_structure(lambda *parts: _of_replicas(parts, counts), *outputs)


def joined(*structures: Any):
    """Returns structures of tensors, joined along their first axis; scalars get one."""
    if len(structures) == 1:
        return structures[0]
    return tf.nest.map_structure(
        lambda *parts: tf.stack(parts) if parts[0].shape.rank == 0 else batches.joined(parts),
        *structures,
    )


def _of_replicas(parts: tuple, counts: list):
    """Returns an output of all replicas; nothing of one that computed with a borrowed example."""
    if parts[0] is None:
        return None
    if parts[0].shape.rank == 0:
        return _mean(parts, counts)
    return batches.joined([_cut(part, count) for part, count in zip(parts, counts, strict=True)])


def _mean(parts: tuple, counts: list):
    dtype = parts[0].dtype
    if not dtype.is_floating:
        return parts[0]
    # In float64, so that the mean of equal numbers is the same number.
    counts = tf.cast(tf.stack(counts), tf.float64)
    summed = tf.math.multiply_no_nan(tf.cast(tf.stack(parts), tf.float64), counts)
    return tf.cast(tf.reduce_sum(summed) / tf.reduce_sum(counts), dtype)


def _cut(output: tf.Tensor, count: Any):
    if isinstance(count, int) and count > 0:
        return output
    size = tf.cast(batches.num_examples(output), tf.int64)
    return batches.rows(output, 0, tf.where(count > 0, size, tf.zeros_like(size)))
