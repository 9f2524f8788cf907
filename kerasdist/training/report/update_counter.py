"""Counts the steps and the updates of a `fit`, and says when a look at them is due.

Callbacks hear only of the last step of a call, by its number in the epoch. Keras takes each call
for one of `steps_per_execution` steps; the last one of an epoch may have fewer.

The number of updates is on the device: with accumulation there are fewer than steps of `fit`, and a
custom train_step may make several. The first step shows how many; from then on nobody
has to ask between two looks. With parameter servers, whose workers go on meanwhile, that step shows
nothing, and with such a train_step looks come late.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_optimizers
from kerasdist.support import memory
from kerasdist.training.context import peers, running_call, traits

# The farthest next look, where it takes more seconds than anybody waits.
_MOST_STEPS = 10**9
# With several workers, which cannot know before it that their steps have become slower. To agree
# takes a message, as each step does: so few cost nothing.
_MOST_STEPS_AGREED = 50


class StepCounter:
    """Counts the steps of a `fit` over its epochs and its calls of several steps.

    Args:
        model: Whose `fit` it is.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._num_steps = 0

    def advance(self, batch: int) -> int:
        """Notes the end of a call of `fit`; returns how many steps it had.

        Args:
            batch: The last step of the call in its epoch, from 0, as Keras reports it.
        """
        before = self._num_steps
        self._num_steps = running_call.num_steps_of_epoch(self._model, batch)
        is_of_new_epoch = self._num_steps <= before
        return self._num_steps - (0 if is_of_new_epoch else before)


class UpdateCounter:
    """Says when it is time for a look, at the same step on all workers.

    Args:
        model: Whose `fit` begins.
        every_steps: A look whenever the number of updates is a multiple of this.
        every_secs: A look about every so many seconds instead: at most a step after these, or with
            several workers 50.
        clock: Returns seconds.

    Attributes:
        step: Updates of the optimizer when they were last asked for, as at each look.
        next_step: The number of updates at which the next look is due.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        every_steps: int | None = None,
        every_secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._model = model
        self._every_steps, self._every_secs, self._clock = every_steps, every_secs or 0.0, clock
        self._steps = StepCounter(model)
        self.step = self._planned_step = updates_of(model)
        self._planned_at = self._looked_at = self._stepped_at = clock()
        self._slowest = 0.0  # Seconds of a step since the look was planned.
        self._is_only_worker = peers.count(model.distribute_strategy) == 1
        # The first step shows how many make so many seconds.
        self.next_step = _next_multiple(self.step, every_steps or 1)
        # Since the updates were last asked for; the most that a step has made; steps until the
        # next look may be due.
        self._num_steps, self._most, self._left = 0, 1, 1

    def advance(self, batch: int) -> bool:
        """Notes the end of a call of `fit`; returns whether a look is due.

        Args:
            batch: The last step of the call in its epoch, from 0.
        """
        num_new = self._steps.advance(batch)
        self._num_steps += num_new
        self._left -= num_new
        self._note_secs(num_new)
        if self._left > 0 and not self._is_late():
            return False
        before, self.step = self.step, updates_of(self._model)
        if not traits.is_async(self._model.distribute_strategy):
            self._most = max(self._most, math.ceil((self.step - before) / self._num_steps))
        self._num_steps = 0
        is_due = self.step >= self.next_step and self._plan()
        if not is_due and self._is_late():  # The next step is one of which it is known before.
            self.next_step = self.step + 1
        self._left = max(1, (self.next_step - self.step) // self._most)
        return is_due

    def is_due_within(self, num_steps: int) -> bool:
        """Whether the next look may be due at one of the next `num_steps` steps."""
        return self._left <= num_steps

    @property
    def first_update(self) -> int:
        """The number of the first update, of the several in a step, for which a look can be due."""
        return self.next_step - self._most + 1

    def _note_secs(self, num_steps: int) -> None:
        before, self._stepped_at = self._stepped_at, self._clock()
        self._slowest = max(self._slowest, (self._stepped_at - before) / max(num_steps, 1))

    def _is_late(self) -> bool:
        """Whether so many seconds are over: steps have become slower since the plan was made."""
        if self._every_steps is not None or not self._is_only_worker:
            return False
        return self._stepped_at - self._looked_at >= self._every_secs

    def _plan(self) -> bool:
        """Chooses the next look; returns whether this one is more than a measurement."""
        if self._every_steps is not None:
            self.next_step = _next_multiple(self.step, self._every_steps)
            return True
        now, slowest, self._slowest = self._stepped_at, self._slowest, 0.0
        secs_per_step = (now - self._planned_at) / max(self.step - self._planned_step, 1)
        left = self._every_secs - (now - self._looked_at)
        strategy = self._model.distribute_strategy
        # Workers have different clocks, and must agree on the step.
        left, secs_per_step, slowest = peers.sum_over(
            strategy, [left, secs_per_step, slowest]
        ) / peers.count(strategy)
        is_due = left <= secs_per_step / 2
        if is_due:
            self._looked_at, left = now, self._every_secs
        self._planned_at, self._planned_step = now, self.step
        most = _MOST_STEPS if self._is_only_worker else _MOST_STEPS_AGREED
        # Steps may just have become slower, and `every_secs` may be inf.
        num_steps = min(left / max(secs_per_step, slowest, 1e-6), most)
        self.next_step = self.step + max(1, round(num_steps))
        return is_due


def updates_of(model: keras.Model) -> int:
    """Returns the updates that the optimizer of a model has made.

    Of several optimizers, the first that has made any counts: programs with optimizers of their own
    call `compile()` without one, and the model then has one that nobody uses. Those that layers
    hold come last, and count only from when they are first seen here.
    """
    return next((count for _, count in _counts_of(model) if count), 0)


def optimizer_of(model: keras.Model) -> Any:
    """Returns the optimizer that `updates_of` counts; None if a model has none."""
    used = next((each for each, count in _counts_of(model) if count), None)
    return used or next((each for each, _ in _counts_of(model)), None)


def _next_multiple(step: int, every_steps: int) -> int:
    return (step // every_steps + 1) * every_steps


def _counts_of(model: keras.Model) -> Iterator[tuple[Any, int]]:
    if model.optimizer is not None:
        yield model.optimizer, _count_of(model.optimizer)
    for optimizer in keras_optimizers.optimizers_of(model):
        yield optimizer, _count_of(optimizer)
    if custom_parts.is_original_step(model.train_step):
        return
    for optimizer in keras_optimizers.optimizers_inside(model):
        notes, count = memory.of_part(optimizer), _count_of(optimizer)
        if notes.updates_before is None:
            notes.updates_before = count
        yield optimizer, count - notes.updates_before


def _count_of(optimizer: Any) -> int:
    return int(tf.convert_to_tensor(optimizer.iterations))
