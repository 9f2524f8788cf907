"""What a run keeps while it trains: checkpoints, summaries, traces and averages of the weights."""

import functools

import keras
from absl import flags

from kerasdist import callbacks

from ..files.train_dir import TrainDir
from ..typed_flags import DECAY, define_count, define_number

_FEW = 10  # Examples per second that are shown with a decimal.


def define_flags(values: flags.FlagValues) -> None:
    """Defines slim's flags for what is written during training."""
    count = functools.partial(define_count, values)

    count("save_interval_secs", 600, "Seconds between checkpoints, from which a run can resume.")
    count(
        "save_summaries_secs",
        None,
        "Seconds between summaries: norms, histograms and rates. Default: no summaries.",
    )
    count("trace_every_n_steps", None, "Global steps between profiler traces. Default: no traces.")
    define_number(
        values,
        "moving_average_decay",
        None,
        "Evaluate and save moving averages of the weights, with this decay. Default: the weights.",
        DECAY,
    )


def build(values: flags.FlagValues, train_dir: TrainDir) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that the flags ask for."""
    found: list[keras.callbacks.Callback] = []
    if values.moving_average_decay is not None:
        found.append(callbacks.MovingAverage(values.moving_average_decay, validate=True))
    if values.save_summaries_secs is not None:
        found.append(callbacks.Summaries(train_dir.path, every_secs=values.save_summaries_secs))
    if values.trace_every_n_steps is not None:
        found.append(
            callbacks.ProfilerTrace(train_dir.path, every_steps=values.trace_every_n_steps)
        )
    if values["log_every_n_steps"].present and values.log_every_n_steps:
        found.append(SlimLines(values.log_every_n_steps))
    found.append(
        callbacks.Checkpoint(train_dir.checkpoints, every_secs=values.save_interval_secs, keep=2)
    )
    return found


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
