"""Compares calls of `fit` that take turns, some steps at a time.

A machine drifts within a second, and two models that are the same differ by a few percent for as
long as they live, by where their memory is. So each arm has several models; each of them runs its
`fit` in a thread, but only one thread at a time, for a turn of some steps; and what is compared are
the means over the models of an arm and over the turns in which a callback acts at least once.
"""

import dataclasses
import random
import threading
import time
from collections.abc import Callable

import interleaved
import keras
import numpy as np

_LIMIT_SECS = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turns:
    """How the arms take turns.

    Attributes:
        steps: Of a turn.
        group: Turns that are one measurement.
        rounds: Measurements.
        models: Of an arm.
    """

    steps: int = 10
    group: int = 10
    rounds: int = 20
    models: int = 2


class _Turn(keras.callbacks.Callback):
    """Holds a `fit` after each turn until it is given another one; notes their seconds."""

    def __init__(self, steps: int):
        super().__init__()
        self._steps, self._num_left, self._begun_at = steps, 1, 0.0
        self._given, self._over = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.secs: list[float] = []

    def begin(self, run: Callable, num_turns: int) -> None:
        """Runs `fit` for a step and so many turns; it waits after that step."""
        num_steps = num_turns * self._steps + 1
        self._thread = threading.Thread(target=run, args=(num_steps, self), daemon=True)
        self._thread.start()
        self._wait()

    def take(self) -> None:
        """Gives it a turn, and waits until that is over."""
        self._given.release()
        self._wait()

    def end(self) -> None:
        """Lets a `fit` return that has had all its turns."""
        self._given.release()
        assert self._thread is not None
        self._thread.join(_LIMIT_SECS)

    def _wait(self):
        if not self._over.acquire(timeout=_LIMIT_SECS):
            raise TimeoutError(f"A turn of {self._steps} steps has not ended in {_LIMIT_SECS} s.")

    def on_train_batch_end(self, batch, logs=None):
        self._num_left -= 1
        if not self._num_left:
            self.secs.append(time.perf_counter() - self._begun_at)
            self._over.release()
            self._given.acquire()
            self._num_left, self._begun_at = self._steps, time.perf_counter()


def compare(arms: dict[str, Callable[[], Callable]], turns: Turns):
    """Times `arms` against the first of them.

    Args:
        arms: Functions that make a model, by title; they return one that runs `fit` for a number
            of steps, with one callback more.
        turns: How they take turns.

    Returns:
        List of `interleaved.Ratio`, and the microseconds per step of each round by arm.
    """
    # One group in which the graphs are made is left out.
    num_turns = (turns.rounds + 1) * turns.group
    running: dict[str, list[_Turn]] = {}
    for arm, make in arms.items():
        running[arm] = [_Turn(turns.steps) for _ in range(turns.models)]
        for each in running[arm]:
            each.begin(make(), num_turns)
    everybody = [each for of_arm in running.values() for each in of_arm]
    for _ in range(num_turns):
        for each in random.sample(everybody, len(everybody)):
            each.take()
    for each in everybody:
        each.end()
    times = {arm: _microsecs_per_step(of_arm, turns) for arm, of_arm in running.items()}
    base = times[next(iter(arms))]
    return [interleaved.ratio_of(arm, times[arm], base) for arm in arms], times


def _microsecs_per_step(of_arm: list[_Turn], turns: Turns) -> list[float]:
    secs = np.mean([each.secs[1 + turns.group :] for each in of_arm], axis=0)
    return (secs.reshape([turns.rounds, turns.group]).mean(axis=1) / turns.steps * 1e6).tolist()
