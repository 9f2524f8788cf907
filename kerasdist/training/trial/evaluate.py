"""The trial of a test_step: do the replicas evaluate as one device does?

A loss, and what a test_step returns, count as means over the examples. Results of metrics are read
for all examples; what the metrics count is compared.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.private import custom_parts
from kerasdist.training.context import traits
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.replica import replicas
from kerasdist.training.trial import choose, examples, run, tolerances, undo, words
from kerasdist.training.trial.choose import Found, Question
from kerasdist.training.trial.examples import HowMany
from kerasdist.training.trial.run import Mode, Tried


def is_due(model: keras.Model) -> bool:
    """Whether a test_step of `model` can give something else than Keras' own parts do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.is_async(strategy):
        return False
    return not custom_parts.evaluates_each_example_alone(model)


class TrialOfEvaluate(choose.Trial):
    """A test_step: what it returns, the losses that Keras adds up meanwhile, and what it counts.

    Args: those of `Trial`.
    """

    promise = "evaluate as one device does"

    @classmethod
    def warn_of_differences(cls, model: keras.Model, *args: Any, **kwargs: Any) -> bool:
        """Does what `Trial.warn_of_differences` does, with less to say within `fit`.

        Validation is not looked at where the step that trains has been, and is made of the same
        parts.
        """
        training = model.train_function
        was_checked = isinstance(training, TrainFunction) and training.was_checked
        is_said = was_checked and custom_parts.returns_original_metrics(model, "test_step")
        if is_said and not training.is_repeated:
            return False
        return super().warn_of_differences(model, *args, is_said=is_said, **kwargs)

    def __init__(self, question: Question, how_many: HowMany):
        super().__init__(question, how_many)
        batch = examples.of(question.batch, how_many, self.num_replicas)
        self.tolerance = tolerances.of_results(self.model, are_few=how_many == "one")
        self.tried = Tried(
            model=self.model,
            step=functools.partial(_step_with_losses, question.step),
            batch=batch,
            twin=examples.twin_of(batch),
        )
        with undo.failing_together(self.strategy):
            self.truth, self.twin = run.of_one_device(self.tried)

    def compare(self, mode: Mode) -> Found:
        ours = run.of_replicas(self.tried, mode, self.truth, [])
        return Found(computed=self.compare_logs(ours), outcome=ours)

    def describe(self, found: Found, mode: Mode) -> list[str]:
        return words.of_logs(found.computed, self.num_replicas, is_training=False)


def _step_with_losses(step: Callable, data: Any) -> dict:
    """Returns what a step returns, and the losses that Keras adds up meanwhile."""
    logs = step(data)
    return {"logs": logs, "losses": replicas.losses()}
