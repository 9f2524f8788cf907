"""Logs how fast training is, and whether the data is what it waits for."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.support.checks import check_int, check_positive
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.replica import replicas
from kerasdist.training.report import log_lines, worker_share
from kerasdist.training.report.forward_flops import forward_flops, specs_of
from kerasdist.training.report.limit import Limit
from kerasdist.training.report.rate_meter import Rate, RateMeter
from kerasdist.training.report.update_counter import UpdateCounter

# From this share on, a line says that training waits for its data.
_MUCH_INPUT = 0.3


class Throughput(StepCallback):
    """Logs a line like `step 120, loss = 0.41 (5312 examples/s; 24.1 ms/step)` every few steps.

    On several workers the chief logs the rate of all workers and the mean per worker, and the
    others log that mean. The loss is that of the last global batch, or with asynchronous workers
    the mean of the epoch. Steps are those of the optimizer. The step that TensorFlow compiles,
    validation, and steps that a `ProfilerTrace` records do not count. The logs of an epoch get its
    mean rate over all workers as "examples_per_second", NaN if no step of it counts. At the end the
    chief says what limited the training: the input, the computation, messages, the program between
    the steps, or one slow worker.

    The lines go to the logger "kerasdist" of Python's logging at level INFO, which is also the
    level of this logger unless the program sets another one.

    Args:
        every_steps: Steps between two lines.
        peak_flops: What one device can compute, in floating-point operations per second. The line
            then ends with the share of it that is used ("MFU"). A step is counted as three forward
            passes per example (the backward pass costs about two), with inputs of the sizes that
            the model or else its first batch has. If these are unknown there is a warning instead.

    Attributes:
        last: The `Rate` of the last line; None before it.

    Raises:
        TypeError, ValueError: `every_steps` is not an int of at least 1, or `peak_flops` is not a
            positive number.

    Example:
        ```python
        model.fit(dataset, callbacks=[Throughput(every_steps=10)])
        ```
    """

    measures_losses = measures_time = True

    def __init__(self, every_steps: int = 10, *, peak_flops: float | None = None):
        super().__init__()
        check_int("every_steps", every_steps, at_least=1)
        if peak_flops is not None:
            check_positive("peak_flops", peak_flops, finite=True)
        self.every_steps = every_steps
        self.peak_flops = peak_flops
        self.last: Rate | None = None

    def prepare(self, model: keras.Model):
        self._specs: Any = None  # Those of the inputs of the first batch.
        self._flops: float | None = None
        self._has_counted = self.peak_flops is None

    def update(self, gradients_and_variables: list, apply: Callable):
        step = replicas.current()
        if not self._has_counted and self._specs is None and step is not None:
            self._specs = specs_of(step.data)
        apply(gradients_and_variables)

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        self._limit = Limit(worker_share.pace_of(self.model.distribute_strategy))
        self._losses = self.model.train_function.losses.reader()
        self._counter = UpdateCounter(self.model, every_steps=self.every_steps)
        self._meter, self._epoch = RateMeter(self.model), RateMeter(self.model)
        self._meters = (self._meter, self._epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        if not self._has_counted:  # Now, in the first step: its time does not count.
            self._has_counted = True
            self._count_flops()
        for meter in self._meters:
            meter.advance(batch)
        if not self._counter.advance(batch):
            return
        last, _ = self._losses.take()
        rate = self._meter.look()
        loss = last["loss"] if "loss" in last else (logs or {}).get("loss")
        loss = None if loss is None else float(loss)
        if rate is None:
            line = self.line_without_rate(self._counter.step, loss)
        else:
            self.last = rate
            line = self.line(self._counter.step, rate, loss)
        if line:
            log_lines.say(self.model.distribute_strategy, line)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None):
        for meter in self._meters:
            meter.begin_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None):
        rate = self._epoch.look_at_all()
        self._limit.add(rate)
        if logs is not None:  # A history and a CSV need a value in each epoch.
            logs["examples_per_second"] = rate.examples_per_second if rate else math.nan

    def on_train_end(self, logs: dict[str, Any] | None = None):
        limit = self._limit.sentence()
        if limit and peers.is_chief(self.model.distribute_strategy):
            log_lines.say(self.model.distribute_strategy, limit)

    def _count_flops(self):
        try:
            self._flops = forward_flops(self.model, self._specs)
        except ValueError as error:
            warn(
                f"Throughput logs no MFU of model '{self.model.name}': {error}. Leave out "
                "`peak_flops`, or give the model inputs of fixed sizes."
            )

    def describe(self):
        return f"log the throughput every {self.every_steps} steps"

    def line_without_rate(self, step: int, loss: float | None) -> str:
        """Returns what is logged if no step since the line before counts; "" is no line.

        Args:
            step: Of the optimizer.
            loss: Of the last global batch; None if it is unknown.
        """
        del step, loss
        return ""

    def line(self, step: int, rate: Rate, loss: float | None) -> str:
        """Returns what is logged; a subclass may put it differently.

        Args:
            step: Of the optimizer.
            rate: Since the line before.
            loss: Of the last global batch; None if it is unknown.
        """
        strategy = self.model.distribute_strategy
        parts = [f"{_rates(strategy, rate)}; {rate.ms_per_step:.1f} ms/step"]
        if self._flops:
            used = 3 * self._flops * rate.examples_per_second
            parts.append(f"MFU {used / (self.peak_flops * strategy.num_replicas_in_sync):.1%}")
        if rate.input_share > _MUCH_INPUT:
            parts.append(f"waits for data {rate.input_share:.0%} of the time: the input limits it")
        shown = "" if loss is None else f", loss = {loss:.4g}"
        return f"step {step}{shown} ({'; '.join(parts)})"


def _rates(strategy: tf.distribute.Strategy, rate: Rate) -> str:
    num_workers = peers.num_workers(strategy)
    per_worker = rate.examples_per_second / num_workers
    if num_workers == 1:
        return f"{rate.examples_per_second:.0f} examples/s"
    if not peers.is_chief(strategy):
        return f"{per_worker:.0f} examples/s"
    return f"{rate.examples_per_second:.0f} examples/s global, {per_worker:.0f} per worker"
