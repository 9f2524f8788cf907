"""What a run keeps while it trains: checkpoints, summaries, traces and averages of the weights."""

import functools

import keras
from absl import flags

from kerasdist import callbacks

from ..files.train_dir import TrainDir
from ..typed_flags import DECAY, define_count, define_counts, define_number
from ..usage_error import UsageError

_FEW = 10  # Examples per second that are shown with a decimal.


def define_flags(values: flags.FlagValues) -> None:
    """Defines slim's flags for what is written during training."""
    count = functools.partial(define_count, values)

    count("save_interval_secs", 600, "Seconds between checkpoints, from which a run can resume.")
    count("keep_checkpoints", 2, "How many of the newest checkpoints are kept.")
    count(
        "save_summaries_secs",
        None,
        "Seconds between summaries: losses, norms, histograms, rates; with pictures of the first "
        "batch. Default: no summaries.",
    )
    count("trace_every_n_steps", None, "Global steps between profiler traces. Default: no traces.")
    define_counts(values, "trace_at_steps", "Global steps to trace instead, such as 60,120.")
    define_number(
        values,
        "loss_averages_decay",
        None,
        "Show each loss as a moving average over the steps, with this decay, beside its last value "
        "as (raw). The Inception trainers have 0.9. Default: the mean since the epoch began.",
        DECAY,
    )
    define_number(
        values,
        "moving_average_decay",
        None,
        "Evaluate and save moving averages of the weights, with this decay. Default: the weights.",
        DECAY,
    )


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    if values.trace_every_n_steps is not None and values.trace_at_steps is not None:
        raise UsageError("--trace_every_n_steps and --trace_at_steps exclude each other.")


def build(values: flags.FlagValues, train_dir: TrainDir) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that the flags ask for."""
    found: list[keras.callbacks.Callback] = []
    if values.moving_average_decay is not None:
        found.append(callbacks.MovingAverage(values.moving_average_decay, validate=True))
    if values.loss_averages_decay is not None:
        found.append(callbacks.LossAverages(values.loss_averages_decay))
    if values.save_summaries_secs is not None:
        found.append(callbacks.Summaries(train_dir.path, every_secs=values.save_summaries_secs))
    if values.trace_every_n_steps is not None or values.trace_at_steps is not None:
        trace = callbacks.ProfilerTrace(
            train_dir.path,
            every_steps=values.trace_every_n_steps,
            at_steps=values.trace_at_steps,
        )
        found.append(trace)
    if values["log_every_n_steps"].present and values.log_every_n_steps:
        found.append(SlimLines(values.log_every_n_steps))
    checkpoint = callbacks.Checkpoint(
        train_dir.checkpoints, every_secs=values.save_interval_secs, keep=values.keep_checkpoints
    )
    return [*found, checkpoint]


class SlimLines(callbacks.Throughput):
    """The lines of slim's trainer, with the examples/s of all clones and workers."""

    def line(self, step, rate, loss):
        number = rate.examples_per_second
        per_second = f"{number:.1f}" if number < _FEW else f"{number:.0f}"
        return f"{_start(step, loss)} ({rate.ms_per_step:.1f} ms/step, {per_second} examples/s)"

    def line_without_rate(self, step, loss):
        return f"{_start(step, loss)} (a step that is prepared or measured has no rate)"


def _start(step: int, loss: float | None) -> str:
    return f"global step {step}: loss = {'unknown' if loss is None else f'{loss:.4f}'}"


def average_among(found: list) -> callbacks.MovingAverage | None:
    """Returns the moving average among callbacks, if there is one."""
    return next((each for each in found if isinstance(each, callbacks.MovingAverage)), None)
