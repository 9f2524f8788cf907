"""A proof, before training, that the replicas compute what one device would."""

import textwrap
import time
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.comparison.comparison import Comparison, compare
from kerasdist.comparison.reasons import reasons
from kerasdist.comparison.recording import OneStep, Start, Step
from kerasdist.private import custom_parts, keras_layers
from kerasdist.training.context import deployment, peers, running_call, traits
from kerasdist.training.hooks import divided_values, scope_checks, slots
from kerasdist.training.replica.draws import Draws
from kerasdist.training.trial import undo, whole_step
from kerasdist.training.trial.watched_step import WatchedStep, named_values, slots_of

_WIDTH = 100


class FirstStepProof(keras.callbacks.Callback):
    """Computes the first step of a `fit` as one device would, too, and prints whether it is equal.

    Use it on the machines that a program trains on; `python -m kerasdist doctor` examines more
    steps, against plain Keras, on any machine. The first batch is computed twice before training
    begins: over the replicas, and whole on each of them. Meanwhile all examples draw the same
    random numbers, batch statistics are those of the global batch, and no other callback acts.
    Then weights, optimizers, metrics and seeds are put back, and `fit` goes on as without it.

    It costs the time of two first steps, which it prints, and the memory of the whole batch on each
    device.

    Attributes:
        comparison: What was found; None before the first step, and if it cannot be compared.

    Raises:
        RuntimeError: In `fit`: the model was created outside of our strategies' scopes.

    Example:
        ```python
        model.fit(dataset, callbacks=[FirstStepProof()])
        ```
    """

    def __init__(self):
        super().__init__()
        self.comparison: Comparison | None = None
        self._watched: WatchedStep | None = None

    def set_model(self, model: keras.Model):
        super().set_model(model)
        scope_checks.check_has_strategy(model, type(self).__name__)

    def on_train_begin(self, logs: dict | None = None):
        self.comparison = None
        if traits.has_remote_variables(self.model.distribute_strategy):
            self._say_why_not("beside parameter servers workers have the batches, not the chief")
            return
        self._watched = WatchedStep(
            self.model.train_function,
            num_steps=1,
            watch=self._watch,
            strategy=self.model.distribute_strategy,
        )
        self.model.train_function = self._watched
        running_call.at_end(self.model, self._unwatch)  # Also after an error before the first step.

    def _watch(self, taken: list | None, run: Callable[[], tuple]):
        self._unwatch()
        if reason := _why_not(self.model, taken):
            self._say_why_not(reason)
        elif taken:
            self._prove(taken[0])
        logs, _ = run()
        return logs

    def _unwatch(self):
        if self._watched and self.model.train_function is self._watched:
            self.model.train_function = self._watched.inside
        self._watched = None

    def _prove(self, batch: Any):
        start = time.perf_counter()
        steps = []
        slots.make(self.model)
        weights = named_values(self.model, self.model.weights)
        before = Start(name=self.model.name, weights=weights)
        for run in (whole_step.run_whole, whole_step.run_shares):
            with undo.state_kept(self.model), Draws(are_alike=True):
                logs = run(self.model, batch)
                steps.append(OneStep(before=before, after=_step(self.model, logs)))
        self.comparison = compare(*steps)
        self._report(time.perf_counter() - start)

    def _report(self, secs: float):
        found = self.comparison
        assert found is not None
        num_replicas = self.model.distribute_strategy.num_replicas_in_sync
        cost = f"This took {secs:.1f} s, before training."
        if found.is_equal:
            self._say(
                f"First step: equal on {num_replicas} replicas and on one device "
                f"({found.describe()}). {cost}"
            )
            return
        likely = " ".join(reasons(found, num_replicas=num_replicas))
        if dtype := deployment.of(self.model.distribute_strategy).allreduce_dtype:
            likely = (
                f"Rounding: gradients are sent as {dtype}. If it differs without, too: {likely}"
            )
        self._say(f"First step: DIFFERS on {num_replicas} replicas from one device.")
        self._say(found.describe())
        self._say(f"Likely reason: {likely} {cost}")

    def _say_why_not(self, reason: str):
        self._say(f"First step not compared with one device: {reason}.")

    def _say(self, text: str):
        if peers.is_chief(self.model.distribute_strategy):
            print("\n".join(textwrap.fill(line, _WIDTH) for line in text.splitlines()), flush=True)


def _step(model: keras.Model, logs: dict) -> Step:
    return Step(
        first=1,
        last=1,
        model=0,
        weights=named_values(model, model.weights),
        slots=named_values(model, slots_of(model)),
        logs=logs,
        examples=None,
        dtype=model.compute_dtype,
        has_own_step=not custom_parts.is_original_step(model.train_step),
    )


def _why_not(model: keras.Model, taken: list | None) -> str:
    """Returns why the first step of a model cannot be compared; "" if it can."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return "there is one replica"
    if not keras_layers.is_built(model):
        return "the first step makes the variables"
    if taken is None:
        return "each worker reads a part of the data, and none the whole batch"
    if divided_values.is_distributed(taken[0]):
        return "the program distributes its data, and no replica has the whole batch"
    return ""
