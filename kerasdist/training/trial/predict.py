"""The trial of a predict_step: do the replicas' outputs, joined, say what one device says?

Each replica predicts its part of a batch, and the outputs are joined along their first axis. That
is wrong for what has no row for each example, such as a matrix of weights, and for a row that is
computed from other examples, too. Where it is, one replica predicts whole batches, which gives what
one device gives without a trial.

No worker speaks to another: each predicts all data, and decides by itself.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_threads, trial_adapter
from kerasdist.training.context import peers
from kerasdist.training.step import graph_errors
from kerasdist.training.trial import choose, compare, examples, run, tolerances, undo, words
from kerasdist.training.trial.choose import Found, Question
from kerasdist.training.trial.examples import HowMany
from kerasdist.training.trial.outcome import Arrays
from kerasdist.training.trial.run import Mode, Tried


def describe_difference(
    model: keras.Model, step: Callable, predict_parts: Callable, batch: Any
) -> str | None:
    """Returns in words what is not the same where replicas predict parts of a batch, or None.

    Args:
        model: A model whose variables exist.
        step: Its predict_step.
        predict_parts: Called with a function that takes the place of `step`, and a batch; returns
            the joined outputs of the replicas.
        batch: The first batch, of two examples or more: tensors [examples, ...].
    """
    question = _Question(
        model=model, step=step, batch=batch, may_be_whole=True, predict_parts=predict_parts
    )
    texts = choose.choose(TrialOfPredict, question).texts
    return texts[0] if texts else None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Question(Question):
    predict_parts: Callable


class TrialOfPredict(choose.Trial):
    """A predict_step: the outputs of each example.

    Args: those of `Trial`.
    """

    modes = (Mode.DIVIDED, Mode.WHOLE)
    further_sizes = ("most",)
    question: _Question

    def __init__(self, question: Question, how_many: HowMany):
        super().__init__(question, how_many)
        batch = examples.of(question.batch, how_many, self.num_replicas)
        self.tolerance = tolerances.of_gradients(self.model)
        self.tried = Tried(
            model=self.model, step=question.step, batch=batch, twin=examples.twin_of(batch)
        )
        self._truth, self._twin = self._predict_whole()

    @staticmethod
    def num_replicas_of(strategy: Any) -> int:
        return len(peers.local_replicas(strategy))

    @staticmethod
    def any_of(strategy: Any, is_so: bool) -> bool:
        return is_so

    @staticmethod
    @contextlib.contextmanager
    def around(model: keras.Model) -> Generator[None]:
        with undo.without_traces(model):
            yield

    def try_parts(self) -> None:
        """Does nothing: a worker has all parts of its batch, which `compare` tries."""

    def compare(self, mode: Mode) -> Found:
        if mode is Mode.WHOLE:  # By one replica, as one device does it.
            return Found(computed=None)
        try:
            joined = self._predict_divided()
        except Exception as error:  # The whole batch may be right for what a part is not.  # noqa: BLE001
            return Found(computed=graph_errors.describe_error(error))
        found = compare.outputs(self._truth, self._twin, _arrays_of(joined), self.tolerance)
        return Found(computed=words.of_output(*found) if found else None)

    def describe(self, found: Found, mode: Mode) -> list[str]:
        return [found.computed] if found else []

    def _predict_whole(self) -> tuple[Arrays, Arrays]:
        """Returns what a replica gives for the whole batch, and for one that rounding touched."""
        first, *_ = peers.local_replicas(self.strategy)
        outputs: dict[int, Any] = {}

        def step(data: Any) -> None:
            if data is self.tried.twin:
                examples.move_weights(self.model, tolerances.LAST_BITS)
            outputs[peers.replica_id() - first] = self.tried.step(data)

        run.run_on_one_device(self.tried, step, undoes_attributes=False)
        return _arrays_of(outputs[0]), _arrays_of(outputs[1])

    def _predict_divided(self) -> Any:
        keras_state = keras_threads.thread_state()
        with (
            trial_adapter.assignments_undone(),
            trial_adapter.alike_draws() as start,
        ):

            def step(share: Any) -> Any:
                keras_threads.inherit(keras_state)
                start()
                return self.tried.step(share)

            return self.question.predict_parts(step, self.tried.batch)


def _arrays_of(outputs: Any) -> Arrays:
    """Returns the arrays in outputs by their paths; of ragged and sparse ones their parts."""
    return {
        (*path, position): np.asarray(tf.convert_to_tensor(part))
        for path, leaf in keras.tree.flatten_with_path(outputs)
        for position, part in enumerate(tf.nest.flatten(leaf, expand_composites=True))
        if part is not None
    }
