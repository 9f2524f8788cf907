"""Checks the first step before it runs, with the first batch that can be divided.

A model that nobody has built has the variables that the trace of its first step makes. Without a
graph it is the step itself that makes them: it then cannot be checked, since it must draw their
values as it would without us, and what it does with a part of the batch is known only before the
second step.

What is hidden in the first step, by a weight that is 0, shows when a program sets that weight: the
first step of the epoch that follows is then checked as well (`read_scalars`).
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_layers
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.data.gathered_rows import gathered_rows
from kerasdist.training.gradients import custom_apply
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.step.read_scalars import ReadScalars

# How many examples of each replica the check looks at: as many as a trial can use.
_EXAMPLES_OF_REPLICA = 8
# Batches of one example that are passed over, in search of one that can be divided: data that is
# sorted by size may begin with some.
_MOST_OF_ONE = 100


class FirstStepCheck:
    """Checks the first step of a model, and later ones that may show more.

    Args:
        model: A compiled model of one of our strategies.
        step: Its `ModelStep`.
        trial: Checks a batch, as `Trial.warn_of_differences` does; None for no check.
        before: Is called before it does, which takes longer than a step.

    Attributes:
        is_made: Whether a step has been checked.
    """

    def __init__(
        self,
        model: keras.Model,
        step: ModelStep,
        trial: Callable | None,
        *,
        before: Callable[[], None],
    ):
        self._model, self._step, self._before = model, step, before
        self._trial: Any = trial
        self._num_of_one = 0
        self._unchecked: list[str] = []
        self._is_possible = trial is not None
        self._scalars = ReadScalars(model)
        self._is_new = self._is_wanted_again = False
        self.is_made = False

    def begin(self, *, are_divided: bool) -> None:
        """Begins an epoch or an `evaluate`: its first step is checked again if it may show more.

        All workers call it together.

        Args:
            are_divided: Whether replicas have parts of the batches: what is whole shows all.
        """
        if not self._is_possible:
            return
        may_differ = self.is_made and are_divided and not self._are_values_checked()
        self._is_wanted_again = peers.any_of(self._model.distribute_strategy, may_differ)

    def _are_values_checked(self) -> bool:
        # After a call that has failed nobody knows what its check has seen.
        return not self._is_new and self._scalars.are_checked()

    def note_trace(self) -> None:
        """Notes the graph in which a step has been traced: what it reads is looked at later."""
        if self._is_possible:
            self._scalars.note_trace()

    def end(self) -> None:
        """Ends a call, before a callback sets what its steps have read.

        Only now a check that has failed is told: a step that fails says the same itself.
        """
        if self._is_new:
            self._is_new = False
            self._scalars.note_checked()
        for text in self._unchecked:
            warn(text)
        self._unchecked.clear()

    def is_missed(self) -> bool:
        """Whether the step that comes next cannot be checked, and ought to be."""
        return self._is_due() and not keras_layers.is_built(self._model)

    def note_built(self) -> None:
        """Notes that a step has been traced, or made, which has made all variables."""
        keras_layers.note_unused_layers(self._model)

    def can_be_made(self) -> bool:
        """Whether the step that comes next is to be checked."""
        return self._is_due() and keras_layers.is_built(self._model)

    def _is_due(self) -> bool:
        return self._trial is not None and (self._is_wanted_again or not self.is_made)

    def of_batch(self, batch: Any, *, may_repeat: bool) -> bool:
        """Checks the step of a batch where that is due; returns what `trial` does.

        Args:
            batch: The global batch, or some examples of it.
            may_repeat: Whether every replica can have the whole batch.
        """
        if not self.can_be_made():
            return False
        if _is_one_example(batch):
            self._num_of_one += 1
            if self._num_of_one == _MOST_OF_ONE:  # The next one will be no other.
                self._trial = None
            return False
        self.is_made = self._is_new = True
        self._is_wanted_again = False
        differing = self._step.see(batch)
        self._before()
        with custom_apply.routed(self._model):
            return bool(
                self._trial(
                    *(self._model, self._step.step, batch),
                    note_unchecked=self._unchecked.append,
                    may_repeat=may_repeat,
                    differing=differing,
                )
            )

    def of_own_batch(self, batch: Any, num_examples: Any, *, may_repeat: bool) -> bool:
        """Checks the step of a batch of which each worker has its own part; see `of_batch`.

        Args:
            batch: Of this worker.
            num_examples: How many of its examples count.
            may_repeat: See `of_batch`.
        """
        strategy = self._model.distribute_strategy
        if peers.count(strategy) > 1:
            number = _EXAMPLES_OF_REPLICA * len(peers.local_replicas(strategy))
            batch = gathered_rows(batch, strategy, num_examples, number)
        if batch is None:  # The next one cannot be sent, either.
            self._trial = None
            return False
        return self.of_batch(batch, may_repeat=may_repeat)


def _is_one_example(batch: Any) -> bool:
    leaves = filter(batches.has_first_axis, tf.nest.flatten(batch))
    return {batches.num_examples(leaf) for leaf in leaves} == {1}
