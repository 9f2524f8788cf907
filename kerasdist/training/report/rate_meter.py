"""How fast the steps are: examples, seconds and waits between two looks."""

import dataclasses
import time
from collections.abc import Callable

from kerasdist.training import running_call


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What happened since the last look.

    Attributes:
        num_steps: Steps.
        num_examples: Examples, over all workers.
        secs: Seconds, without those that were left out.
        input_secs: How many of them this worker's steps have waited for their batches.
    """

    num_steps: int
    num_examples: int
    secs: float
    input_secs: float

    @property
    def examples_per_second(self) -> float:
        """Examples per second, over all workers."""
        return self.num_examples / max(self.secs, 1e-9)

    @property
    def ms_per_step(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.secs / max(self.num_steps, 1)

    @property
    def input_share(self) -> float:
        """The share of the time that is a wait for batches, from 0 to 1."""
        return min(self.input_secs / max(self.secs, 1e-9), 1.0)


class RateMeter:
    """Measures a `fit`, without what is compiled, recorded by a profiler, or between two epochs.

    Args:
        model: Whose `fit` has begun.
        clock: Returns seconds.
    """

    def __init__(self, model, *, clock: Callable[[], float] = time.perf_counter):
        self._model, self._clock = model, clock
        self._since: tuple | None = None
        self._left_out, self._stepped_at = 0.0, 0.0
        self._num_steps = self._num_traces = 0
        self._last_batch = -1

    def advance(self, batch: int) -> None:
        """Notes the end of a call of `fit` whose last step is `batch` of its epoch, from 0."""
        num_new = batch + 1 if batch <= self._last_batch else batch - self._last_batch
        self._last_batch, self._stepped_at = batch, self._clock()
        if self._since is None or self._was_traced():
            self.restart()  # TensorFlow has compiled it, or a profiler has recorded it.
        else:
            self._num_steps += num_new

    def restart(self) -> None:
        """Forgets what was measured: the next look is at what comes from here on."""
        self._since = self._read()
        self._num_steps, self._left_out = 0, 0.0

    def begin_epoch(self) -> None:
        """Leaves out the time since the last step: that of validation and of callbacks."""
        if self._since is not None:
            self._left_out += self._clock() - self._stepped_at

    def look(self) -> Rate | None:
        """Returns what was measured since the last look; None before there is a step."""
        if self._since is None or not self._num_steps:
            return None
        before, now = self._since, self._read()
        secs, num_examples, input_secs = (new - old for new, old in zip(now, before, strict=True))
        rate = Rate(
            num_steps=self._num_steps,
            num_examples=num_examples,
            secs=secs - self._left_out,
            input_secs=input_secs,
        )
        self.restart()
        return rate

    def _was_traced(self) -> bool:
        training = running_call.training_of(self._model)
        if training is None:
            return False
        before, self._num_traces = self._num_traces, training.num_traces
        return training.is_traced or training.num_traces > before

    def _read(self) -> tuple:
        step = self._model.train_function
        return self._stepped_at, int(step.num_examples), float(step.input_secs)
