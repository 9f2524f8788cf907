"""How fast training is, now and then, and whether the data is what it waits for."""

import keras
import tensorflow as tf

from kerasdist.checks import check_int, check_positive
from kerasdist.private import tensorflow_adapter
from kerasdist.training import peers, traits
from kerasdist.training.report import log_lines
from kerasdist.training.report.limit import Limit
from kerasdist.training.report.rate_meter import Rate, RateMeter
from kerasdist.training.report.update_counter import UpdateCounter
from kerasdist.training.step.loss_sums import LossSums
from kerasdist.training.step.update_callback import StepCallback

# From here on a line says that training waits for its data.
_MUCH_INPUT = 0.3


class Throughput(StepCallback):
    """Logs a line like `step 120, loss = 0.41 (5312 examples/s; 24.1 ms/step)` every few steps.

    On several workers the chief logs the rate of all and the mean per worker, and the others log
    that mean. The loss is that of the last global batch, or beside parameter servers the mean of
    the epoch. Steps are those of the optimizer. The step that TensorFlow compiles, validation and
    steps that a `ProfilerTrace` records do not count. The logs of an epoch get its mean rate over
    all workers as "examples_per_second". At the end the chief says what limited the training: the
    input, the computation, messages, the program between the steps, or one slow worker.

    The lines go to the logger "kerasdist" of Python's logging.

    Args:
        every_steps: Steps between two lines.
        peak_flops: What one device can compute, in floating-point operations per second. The line
            then ends with the share of it that is used ("MFU"): three times the operations of a
            forward pass, for its gradient costs two more.

    Attributes:
        last: The `Rate` of the last line; None before it.

    Raises:
        TypeError, ValueError: `every_steps` is no int from 1 on, or `peak_flops` not positive.

    Example:
        ```python
        model.fit(dataset, callbacks=[Throughput(every_steps=10)])
        ```
    """

    measures_time = True

    def __init__(self, every_steps: int = 10, *, peak_flops: float | None = None):
        super().__init__()
        check_int("every_steps", every_steps, at_least=1)
        if peak_flops is not None:
            check_positive("peak_flops", peak_flops, finite=True)
        self.every_steps = every_steps
        self.peak_flops = peak_flops
        self.last: Rate | None = None

    def prepare(self, model):
        self._losses = LossSums(model.distribute_strategy)
        self._flops = _forward_flops(model) if self.peak_flops else None

    def observe_part(self, losses):
        if not traits.keeps_own_pace(self.model.distribute_strategy):
            self._losses.add(losses)

    def on_train_begin(self, logs=None):
        is_asynchronous = traits.keeps_own_pace(self.model.distribute_strategy)
        self._limit = Limit(are_asynchronous=is_asynchronous)
        self._counter = UpdateCounter(self.model, every_steps=self.every_steps)
        self._meter, self._epoch = RateMeter(self.model), RateMeter(self.model)
        self._meters = (self._meter, self._epoch)

    def on_train_batch_end(self, batch, logs=None):
        for meter in self._meters:
            meter.advance(batch)
        if not self._counter.advance(batch):
            return
        last, _ = self._losses.take()
        rate = self._meter.look()
        if rate is None:
            return
        self.last = rate
        loss = last["loss"] if "loss" in last else (logs or {}).get("loss")
        line = self.line(self._counter.step, rate, None if loss is None else float(loss))
        log_lines.say(self.model.distribute_strategy, line)

    def on_epoch_begin(self, epoch, logs=None):
        for meter in self._meters:
            meter.begin_epoch()

    def on_epoch_end(self, epoch, logs=None):
        rate = self._epoch.look_at_all()
        self._limit.add(rate)
        if rate is not None and logs is not None:
            logs["examples_per_second"] = rate.examples_per_second

    def on_train_end(self, logs=None):
        limit = self._limit.sentence()
        if limit and peers.is_chief(self.model.distribute_strategy):
            log_lines.say(self.model.distribute_strategy, limit)

    def describe(self):
        return f"log the throughput every {self.every_steps} steps"

    def line(self, step: int, rate: Rate, loss: float | None) -> str:
        """Returns what is logged; a subclass may put it differently.

        Args:
            step: Of the optimizer.
            rate: Since the line before.
            loss: Of the last global batch; None where nobody knows it.
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


def _rates(strategy, rate) -> str:
    num_workers = num_workers_of(strategy)
    per_worker = rate.examples_per_second / num_workers
    if num_workers == 1:
        return f"{rate.examples_per_second:.0f} examples/s"
    if not peers.is_chief(strategy):
        return f"{per_worker:.0f} examples/s"
    return f"{rate.examples_per_second:.0f} examples/s global, {per_worker:.0f} per worker"


def num_workers_of(strategy) -> int:
    """Returns the workers that train: peers, or those beside parameter servers."""
    served = getattr(strategy, "served_cluster", None)
    return served.num_workers if served else peers.count(strategy)


def _forward_flops(model: keras.Model) -> float | None:
    """Returns the floating-point operations of a forward pass with one example; None if unknown."""
    shapes = getattr(model, "inputs", None)
    if not shapes:
        return None
    specs = [
        tf.TensorSpec([1, *(size or 1 for size in each.shape[1:])], each.dtype) for each in shapes
    ]
    with tensorflow_adapter.outside_scopes():
        graph = tf.function(lambda *inputs: model(list(inputs) if len(inputs) > 1 else inputs[0]))
        graph = graph.get_concrete_function(*specs).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    return tf.compat.v1.profiler.profile(graph, options=options).total_float_ops
