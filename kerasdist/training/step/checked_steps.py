"""Runs the steps that a call asks for, and looks at a first one before, where that is due."""

import functools
import types
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.step.first_step_check import FirstStepCheck
from kerasdist.training.step.repeated_batches import RepeatedBatches
from kerasdist.training.step.step_graphs import ITERATORS, StepGraphs
from kerasdist.training.step.traced_steps import StepResult, TracedSteps


class CheckedSteps:
    """Runs steps, whose first batch a check sees before they do.

    Args:
        model: Their model.
        steps: What is run.
        graphs: Its graphs.
        check: The check.
        repeated: What the replicas have of a batch; changed where the check says so.
    """

    def __init__(
        self,
        model: keras.Model,
        steps: TracedSteps,
        graphs: StepGraphs,
        check: FirstStepCheck,
        repeated: RepeatedBatches,
    ):
        self._model, self._strategy = model, model.distribute_strategy
        self._steps, self._graphs, self._check, self._repeated = steps, graphs, check, repeated

    def run(self, data: GlobalBatches | Iterator) -> StepResult | None:
        """Runs the steps that `data` asks for, and answers it.

        Args:
            data: Batches, or (from `train_on_batch`) an iterator over them.

        Returns:
            What the last step has returned, where a graph of one step has run; None elsewhere.
        """
        is_unchecked = self._check.is_missed() and self._model.run_eagerly
        if is_unchecked:
            # What counts in Python would begin with a number for each replica.
            self._repeated.switch(on=self._repeated.are_possible)
        result = self._take_all(data)
        self._check.end()
        if is_unchecked:
            self._check.note_built()
            self._repeated.switch(on=False)
        return result

    def _take_all(self, data: GlobalBatches | Iterator) -> StepResult | None:
        if not isinstance(data, GlobalBatches):
            for batch in map(batches.as_tensors, data):
                self._build(self._steps.one, batch, reduce_retracing=True)
                self._check_batch(batches.without_optionals(batch))
                self._run_batch(batch)
            return None
        if data.source.next_size is not None:
            self._take_own(data)
            return None
        num_taken, result = self._take_checked(data)
        if num_taken < data.num_steps:
            num_more, result = self._take(data.source.iterator, data.num_steps - num_taken, data)
            num_taken += num_more
        data.answer(num_taken)
        return result

    def _take_checked(self, data: GlobalBatches) -> tuple[int, StepResult | None]:
        """Looks at a first step where that is due, and runs it; returns how many steps it was."""
        if not self._is_looked_at():
            return 0, None
        iterator = data.source.iterator
        batch = next(iterator)
        is_dataset = isinstance(iterator, tf.data.Iterator)
        again = iter(batches.dataset_of(batch, iterator.element_spec)) if is_dataset else None
        if again is None:
            self._build(self._steps.one, batch, reduce_retracing=True)
        else:
            self._build(*self._steps_of(again, 1, data))
        if isinstance(batch, batches.WorkerPart):
            self._check_own_batch(batch.rows, batches.num_own(batch, self._strategy))
            return (1, self._run_batch(batch)) if again is None else self._take(again, 1, data)
        own = batches.without_optionals(batches.in_one_piece(batch, self._strategy))
        if data.source.is_distributed:
            self._check_own_batch(own, batches.num_examples(own))
        else:
            self._check_batch(own)
        if again is None:
            self._run_batch(batch)
            return 1, None
        return self._take(again, 1, data)

    def _take(
        self, iterator: Any, num_steps: int, data: GlobalBatches
    ) -> tuple[int, StepResult | None]:
        """Runs so many of the steps that `data` asks for; returns how many there were."""
        if self._model.run_eagerly or not isinstance(iterator, ITERATORS):
            return self._take_in_python(iterator, num_steps), None
        result = self._run(*self._steps_of(iterator, num_steps, data))
        if data.num_steps == 1:
            return 1, result
        return num_steps if data.is_exact else int(result), None

    def _take_in_python(self, iterator: Any, num_steps: int) -> int:
        for num_taken in range(num_steps):
            batch = self._steps.read(lambda: next(iterator, None))
            if batch is None:
                return num_taken
            self._run_batch(batch)
        return num_steps

    def _take_own(self, data: GlobalBatches) -> None:
        iterator, num_taken, next_size = data.source.iterator, 0, data.source.next_size
        run = functools.partial(self._run, self._steps.with_own_batches)
        if self._is_looked_at() and next_size > 0:
            element = batch, num_examples, _ = next(iterator)
            again = iter(batches.dataset_of(element, iterator.element_spec))
            self._build(self._steps.with_own_batches, again, tf.constant(1), next_size)
            self._check_own_batch(batches.without_optionals(batch), num_examples)
            num_taken, next_size = run(again, tf.constant(1), next_size)
        num_left = data.num_steps - int(num_taken)
        if num_left:
            more, next_size = run(iterator, tf.constant(num_left), next_size)
            num_taken += more
        data.answer(int(num_taken), next_size)

    def _steps_of(self, iterator: Any, num_steps: int, data: GlobalBatches) -> tuple:
        """Returns the method that runs steps for `data` in a graph, and its arguments."""
        if data.num_steps == 1:
            return self._steps.next, iterator
        method = self._steps.exactly if data.is_exact else self._steps.while_data
        return method, iterator, tf.constant(num_steps)

    def _run(self, method: types.MethodType, *inputs: Any, **arguments: Any) -> Any:
        return self._graphs.run(
            method, *inputs, is_unobserved=self._steps.is_unobserved, **arguments
        )

    def _run_batch(self, batch: Any) -> None:
        self._run(self._steps.one, batch, reduce_retracing=True)

    def _is_looked_at(self) -> bool:
        return self._check.can_be_made() or self._is_to_be_built()

    def _is_to_be_built(self) -> bool:
        """Whether a trace of the first step is to make the variables, before it is checked."""
        return self._check.is_missed() and not self._model.run_eagerly

    def _build(self, method: types.MethodType, *inputs: Any, **arguments: Any) -> None:
        if self._is_to_be_built():
            self._graphs.trace(
                method, *inputs, is_unobserved=self._steps.is_unobserved, **arguments
            )
            self._check.note_built()

    def _check_batch(self, batch: Any) -> None:
        self._heed(self._check.of_batch(batch, may_repeat=self._repeated.are_possible))

    def _check_own_batch(self, batch: Any, num_examples: Any) -> None:
        may_repeat = self._repeated.are_possible
        self._heed(self._check.of_own_batch(batch, num_examples, may_repeat=may_repeat))

    def _heed(self, needs_whole_batches: bool) -> None:
        if needs_whole_batches:
            self._repeated.switch(on=True)
        self._graphs.tell_failure(is_told=needs_whole_batches)
