"""Summaries of training for TensorBoard: losses, rates, norms and histograms."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import patterns, plan
from kerasdist.callbacks.step_record import Record, StepRecord
from kerasdist.callbacks.throughput import Throughput
from kerasdist.checkpoints.extension_types import is_extension
from kerasdist.private import keras_optimizers
from kerasdist.support.checks import (
    check_bool,
    check_choice,
    check_steps_or_secs,
    checked_folder,
)
from kerasdist.support.remote_path import absolute
from kerasdist.support.text import counted
from kerasdist.training.context import peers, running_call
from kerasdist.training.hooks import layer_outputs
from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.report import log_lines, worker_share
from kerasdist.training.report.event_file import EventFile
from kerasdist.training.report.limit import Limit
from kerasdist.training.report.rate_meter import Rate, RateMeter
from kerasdist.training.report.update_counter import (
    UpdateCounter,
    optimizer_of,
    updates_of,
)


class Summaries(StepCallback):
    """Writes what training does to event files, every so many updates of the optimizer.

    The chief writes, once, to `log_dir`/train and `log_dir`/validation. Tags:

    | Tag | Content |
    |---|---|
    | `loss`, `loss (raw)` | mean since the last summary; of the last step; also of each output |
    | `regularization_loss`, `regularization_loss/<variable>` | what the regularizers of the \
weights add, and that of each: mean of now and the last summary; now, with `(raw)` behind it |
    | `learning_rate` | of the optimizer; of a `MultiOptimizer`, `learning_rate_adam` and so on |
    | `gradient_norm/<variable>`, `gradient_norm/global` | L2 norm of the global batch's gradient |
    | `gradient_norm_applied/...` | the same after clipping and other callbacks |
    | `update_ratio/<variable>` | L2 norm of the update over that of the weights |
    | `weights/<variable>`, `gradients/<variable>` | histograms |
    | `activations/<layer>`, `sparsity/<layer>` | histogram and share of zeros of a layer's output |
    | `examples_per_second`, `step_ms` | over all workers; milliseconds |
    | `input_wait_share`, `communication_share`, `between_steps_share` | of the time, from 0 to 1; \
with several workers also `.../worker 1` |
    | `staleness/mean`, `staleness/max` | with parameter servers: updates that were made while \
a step was computed; also of each worker |
    | `dropped_share` | with synchronous workers over parameter servers: share of the batches that \
came too late for their update; also of each worker |
    | `steps_per_second/worker 1`, `examples_per_second/worker 1` | with parameter servers |
    | `gradient_bytes/ps 0` | what a step sends to each parameter server |
    | `epoch_<log>` | the logs at the end of each epoch, those of validation in its own file |
    | `plan` | once, as text; the graph of the step is in TensorBoard's tab "Graphs" |

    The steps between summaries are compiled in a graph of their own, in which they only add up the
    losses. There is only one graph, with conditions, with parameter servers, and if a step draws
    random numbers with operations like `tf.random.normal`, which would begin anew in another graph.
    The weights never change because of it. Outputs of layers are those of the first replica's
    examples; there are none of layers that are not called, or inside of `tf.cond` or a loop alone.
    A call of several steps (`steps_per_execution`) writes at most once.

    A `fit` that a `Checkpoint` resumes first removes the later events of the interrupted run from
    the event files of `Summaries` in `log_dir`, since those steps are made again. Any other `fit`
    adds to what is there: give each run a `log_dir` of its own.

    Args:
        log_dir: Folder of the run; a relative path counts from where the callback is made.
        every_steps: Updates between two summaries; 100 unless `every_secs` is given.
        every_secs: Seconds between two summaries instead, and at most a step more; several workers
            agree on the step, at most 50 steps before it.
        weights: Which variables get histograms: True for all that are trained, False for none, or
            regular expressions that match the whole of `variable.path`.
        gradients: The same for gradients. Their norms are always written.
        activations: Which layers: True for all, False, or regular expressions for `layer.name`.
        graph: Whether to write the graph of the compiled step.
        on_error: "warn" goes on without summaries, with a warning, if the disk refuses them;
            "raise" stops.

    Raises:
        TypeError, ValueError: Both `every_steps` and `every_secs` are given; `every_steps` is not
            an int of at least 1, `every_secs` is not a number or is negative, `graph` is not a
            bool, `on_error` is neither "warn" nor "raise", or `log_dir` is not the path of a
            folder; `weights`, `gradients` or `activations` are neither bools nor regular
            expressions. When `fit` begins: an expression matches no variable or layer, or another
            `Summaries` has the same `log_dir`.

    Example:
        ```python
        model.fit(dataset, callbacks=[Summaries("runs/1", every_steps=100)])
        ```

    Source: tags and contents after slim.learning and the Inception trainers.
    """

    measures_losses = measures_time = True
    _record: StepRecord  # Since `prepare`.

    def __init__(
        self,
        log_dir: str | os.PathLike,
        every_steps: int | None = None,
        *,
        every_secs: float | None = None,
        weights: bool | str | Iterable[str] = True,
        gradients: bool | str | Iterable[str] = True,
        activations: bool | str | Iterable[str] = True,
        graph: bool = True,
        on_error: str = "warn",
    ):
        super().__init__()
        check_steps_or_secs(every_steps=every_steps, every_secs=every_secs, may_be_none=True)
        if every_secs is None and every_steps is None:
            every_steps = 100
        check_bool("graph", graph)
        check_choice("on_error", on_error, ("warn", "raise"))
        self.log_dir = absolute(checked_folder("log_dir", log_dir))
        self.every_steps, self.every_secs = every_steps, every_secs
        self._weights = _WantedNames("weights", weights)
        self._gradients = _WantedNames("gradients", gradients)
        self._activations = _WantedNames("activations", activations)
        self._writes_graph, self._is_strict = graph, on_error == "raise"
        self._graph = None

    def prepare(self, model: keras.Model):
        variables = patterns.by_unique_path(model.trainable_variables)
        layers = layer_outputs.by_name(model)
        self._record = StepRecord(
            model.distribute_strategy,
            variables=variables,
            weights=self._weights.among(variables),
            gradients=self._gradients.among(variables),
            layers={name: layers[name] for name in self._activations.among(layers)},
        )

    @contextlib.contextmanager
    def tracing(self, model: keras.Model):
        with self._record.watching():
            yield
        self._graph = _outermost(tf.compat.v1.get_default_graph())

    def looks_within(self, num_steps: int):
        return self._counter.is_due_within(num_steps)

    def extra_sums(self, gradients: list):
        if self.model.optimizer is not None:
            optimizer = keras_optimizers.inner_of(self.model.optimizer)
            self._record.see_outputs(optimizer.iterations)
        return {}

    def observe_gradients(self, gradients_and_variables: list):
        self._record.see_gradients(gradients_and_variables)

    def observe_update(self, gradients_and_variables: list):
        self._record.see_update(gradients_and_variables)

    def after_update(self, variables: list[keras.Variable]):
        self._record.see_weights()

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        self._check_is_single()
        self._counter = UpdateCounter(
            self.model, every_steps=self.every_steps, every_secs=self.every_secs
        )
        self._meter = RateMeter(self.model)
        self._limit = Limit(worker_share.pace_of(self.model.distribute_strategy))
        self._losses = self.model.train_function.losses.reader()
        self._record.plan(self._counter.first_update)
        self._files = {}
        if peers.is_chief(self.model.distribute_strategy):
            self._files = {
                role: EventFile(os.path.join(self.log_dir, role), is_strict=self._is_strict)
                for role in ("train", "validation")
            }
            for file in self._files.values():
                running_call.at_end(self.model, file.close)  # Also after an error.
            # A Checkpoint begins before all other callbacks.
            training = running_call.training_of(self.model)
            if training and training.resumed_time is not None:  # What came later is made again.
                for file in self._files.values():
                    file.forget_after(self._counter.step, since=training.resumed_time)
            self._files["train"].write(self._counter.step, texts={"plan": self._plan()})
            self._regularized = self._regularization()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None):
        self._meter.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        self._meter.advance(batch)
        if not self._counter.advance(batch):
            self._record.plan(self._counter.first_update)
            return
        raw, mean = self._losses.take()
        rate, record = self._meter.look_at_all(), self._record.read()
        self._limit.add(rate)
        self._record.plan(self._counter.first_update)
        if not self._files:
            return
        if not raw:
            mean = {"loss": logs["loss"]} if logs and "loss" in logs else {}
        before, self._regularized = self._regularized, self._regularization()
        raw |= self._regularized
        # It changes slowly, and each step would have to read all weights.
        mean |= {tag: (before.get(tag, now) + now) / 2 for tag, now in self._regularized.items()}
        scalars = {
            **mean,
            **{f"{name} (raw)": value for name, value in raw.items()},
            **self._of_optimizer(),
            **(self._of_rate(rate) if rate else {}),
            **(_of_record(record) if record else {}),
        }
        histograms = _by_tag(record.statistics) if record else {}
        self._files["train"].write(self._counter.step, scalars=scalars, histograms=histograms)
        self._write_graph()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None):
        if not self._files:
            return
        step = updates_of(self.model)
        numbers = {name: value for name, value in (logs or {}).items() if _is_scalar(value)}
        of_validation = {name for name in numbers if name.startswith("val_")}
        others = numbers.keys() - of_validation
        for role, names in (("train", others), ("validation", of_validation)):
            scalars = {f"epoch_{name.removeprefix('val_')}": numbers[name] for name in names}
            self._files[role].write(step, scalars=scalars)

    def on_train_end(self, logs: dict[str, Any] | None = None):
        self._write_graph()
        if self._files:
            self._say_end()

    def _say_end(self):
        strategy, training = self.model.distribute_strategy, running_call.training_of(self.model)
        limit = self._limit.sentence()
        others = training.callbacks if training else ()
        if limit and not any(isinstance(each, Throughput) for each in others):
            log_lines.say(strategy, limit)
        log_lines.say(strategy, self._place())

    def _place(self) -> str:
        files = self._files.values()
        if not any(file.has_content for file in files):
            return f"There are no summaries in {self.log_dir}: they could not be written."
        are_cut = any(file.has_failed for file in files)
        cut = ", up to where the disk refused more" if are_cut else ""
        folder = shlex.quote(self.log_dir)  # For the shell; a name may have a space.
        return (
            f"Summaries are in {self.log_dir}{cut}. To look at them: tensorboard --logdir "
            f"{folder}, or python -m kerasdist show {folder}"
        )

    def describe(self):
        when = counted(self.every_steps, "step") if self.every_steps else f"{self.every_secs:g} s"
        return f"write summaries every {when} to {self.log_dir}"

    def _check_is_single(self):
        given = running_call.callbacks()
        if sum(isinstance(each, Summaries) and each.log_dir == self.log_dir for each in given) > 1:
            raise ValueError(
                f"Several Summaries with log_dir={self.log_dir!r} in `callbacks` would write "
                "the same curves there. Give one, or give each a folder of its own."
            )

    def _plan(self) -> str:
        text = str(plan.plan_training(self.model, callbacks=self.model.train_function.callbacks))
        return "\n".join(f"    {line}" for line in text.splitlines())  # Markdown: as it is.

    def _write_graph(self):
        graph, self._graph = self._graph, None
        if graph is not None and self._writes_graph and self._files:
            self._files["train"].write_graph(graph)

    def _of_rate(self, rate: Rate) -> dict[str, float]:
        pace = worker_share.pace_of(self.model.distribute_strategy)
        return {
            "examples_per_second": rate.examples_per_second,
            "step_ms": rate.ms_per_step,
            **worker_share.tags_of(rate.workers, pace),
            **self.model.train_function.times.take_numbers(),
        }

    def _of_optimizer(self) -> dict[str, float]:
        numbers = {}
        optimizer = keras_optimizers.inner_of(optimizer_of(self.model))
        for each in keras_optimizers.updating(optimizer) if optimizer is not None else ():
            name = "learning_rate" if each is optimizer else f"learning_rate_{each.name}"
            numbers[name] = float(keras.ops.convert_to_tensor(each.learning_rate))
        return numbers

    def _regularization(self) -> dict[str, float]:
        """Returns what each regularizer adds to the loss now, and what all of them add, by tag."""
        variables = patterns.by_unique_path(self.model.trainable_variables)
        losses = {
            f"regularization_loss/{path}": float(each.regularizer(each))
            for path, each in variables.items()
            if each.regularizer
        }
        return losses and {"regularization_loss": sum(losses.values()), **losses}


class _WantedNames:
    """Which names are wanted.

    Args:
        argument: Of the constructor, for messages.
        wanted: True, False, or regular expressions for whole names.
    """

    def __init__(self, argument: str, wanted: Any):
        self._argument = argument
        self._all = wanted if isinstance(wanted, bool) else None
        if self._all is not None:
            return
        if not isinstance(wanted, Iterable):
            raise TypeError(
                f"`{argument}` must be True, False, or regular expressions. Received: "
                f"{argument}={wanted!r}."
            )
        self._patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        for pattern in self._patterns:
            patterns.check_expression(argument, pattern)

    def among(self, names: Mapping[str, Any]) -> set[str]:
        """Returns the names that are wanted.

        Raises:
            ValueError: An expression matches none; lists the closest names.
        """
        if self._all is not None:
            return set(names) if self._all else set()
        for pattern in self._patterns:
            patterns.check_matches_a_name(self._argument, pattern, list(names))
        return {
            name for name in names if any(re.fullmatch(pattern, name) for pattern in self._patterns)
        }


def _is_scalar(value: Any) -> bool:
    """Whether a log is one number; callbacks may write anything into the logs."""
    try:
        array = np.asarray(value)
    except ValueError:  # Lists of different lengths.
        return False
    return array.ndim == 0 and (array.dtype.kind in "biuf" or is_extension(array.dtype))


def _outermost(graph: Any):
    while (outer := getattr(graph, "outer_graph", graph)) is not graph and _is_of_function(outer):
        graph = outer
    return graph if _is_of_function(graph) else None


def _is_of_function(graph: Any) -> bool:
    return getattr(graph, "building_function", False)


def _of_record(record: Record) -> dict[str, float]:
    norms = {
        f"{kind}/global": float(np.linalg.norm(list(record.numbers[kind].values())))
        for kind in ("gradient_norm", "gradient_norm_applied")
    }
    outputs = record.statistics["activations"]
    sparsity = {f"sparsity/{name}": each.sparsity for name, each in outputs.items()}
    return norms | _by_tag(record.numbers) | sparsity


def _by_tag(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{kind}/{name}": each for kind, named in found.items() for name, each in named.items()}
