"""The trial of a train_step: do the replicas give the gradient of one device?

A small difference must be nearly the same with perturbed weights; else it is rounding. Where
nothing but the loss is the user's own, the net predicts once, and the loss alone goes through the
trial: much less to compute, and no net to multiply what rounds.

What the step returns is compared, too: a log counts as a mean over the examples, and a norm or a
maximum is none. What it assigns by itself, to weights or to a state such as a running mean, never
meets what the other replicas assign: where that is not the same on all of them, another warning
says so.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts, keras_losses
from kerasdist.training.context import peers, traits
from kerasdist.training.data import batches
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica import custom_attributes, replicas
from kerasdist.training.trial import (
    assignments,
    choose,
    compare,
    examples,
    run,
    tolerances,
    undo,
    words,
)
from kerasdist.training.trial.choose import Found, Question
from kerasdist.training.trial.compare import GradientDifference
from kerasdist.training.trial.examples import HowMany
from kerasdist.training.trial.outcome import Outcome
from kerasdist.training.trial.run import Mode, Tried

# Per replica: twice as many predictions as examples of a step cost little.
_EXAMPLES_OF_LOSS = 8


def is_due(model: keras.Model) -> bool:
    """Whether a step of `model` can mean something else than Keras' own do."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or traits.is_async(strategy):
        return False
    return may_differ(model)


def may_differ(model: keras.Model) -> bool:
    """Whether a step of `model` can give something else with a part of its batch."""
    return (
        custom_parts.has_custom_parts(model)
        or not custom_parts.has_original_losses(model)
        # Beside another loss, of another shape, which Keras adds to the number of each example.
        or custom_parts.has_unreduced_losses(model)
    )


class TrialOfFit(choose.Trial):
    """A train_step: its gradients, its logs, and what it assigns.

    Args: those of `Trial`.

    Raises:
        FloatingPointError: A few examples are too few: on one device their gradients are NaN as
            well, or zero.
    """

    promise = "give the gradient of one device"

    def __init__(self, question: Question, how_many: HowMany):
        super().__init__(question, how_many)
        model, strategy = self.model, self.strategy
        self.tolerance = tolerances.of_results(model, are_few=how_many == "one")
        self._states = custom_attributes.states_of(model)
        if not peers.are_alike(strategy, str([name for name, _ in self._states])):
            self._states = []  # A worker may keep something for itself.
        with undo.failing_together(strategy):
            self.tried = self.made_of(question, how_many)
            self.truth, self.twin = run.of_one_device(self.tried)
            if how_many in examples.TOO_FEW and not _says_something(self.truth):
                raise FloatingPointError("The gradients of a few examples are NaN, or all zero.")
        # In a graph it is the trace that counts in Python, and it does on one device.
        self._counted = self.truth.counted if model.run_eagerly else []
        # The step may have made some.
        self._weights = [(each.path, each.value) for each in model.trainable_variables]

    def made_of(self, question: Question, how_many: HowMany) -> Tried:
        """Returns what is tried: the loss alone where nothing else can differ, or the step."""
        number = self.num_replicas
        return _loss_alone(question, how_many, number) or whole_step(question, how_many, number)

    def run(self, tried: Tried, mode: Mode, truth: Outcome, assigned: list) -> Outcome:
        """Runs what is tried in a mode; see `run.of_replicas`."""
        return run.of_replicas(tried, mode, truth, assigned)

    def compare(self, mode: Mode) -> Found:
        assigned = [value for _, value in (*self._weights, *self._states)]
        ours = self.run(self.tried, mode, self.truth, assigned)
        difference = compare.gradients(
            self.truth,
            self.twin,
            ours,
            tolerance=tolerances.of_gradients(self.model, are_few=self.how_many == "one"),
            num_replicas=self.num_replicas,
        )
        if self._is_rounding(difference, ours, mode):
            difference = None
        # With the whole batch each replica counts what one device counts.
        has_counted = bool(self._counted) and mode is not Mode.WHOLE
        deviates = has_counted or any(map(compare.deviates, ours.deviations))
        return Found(computed=difference, outcome=ours, deviates=deviates)

    def _is_rounding(self, found: GradientDifference | None, ours: Outcome, mode: Mode) -> bool:
        """Whether a small difference is another one where the weights are perturbed."""
        is_small = found is not None and found.size <= tolerances.ROUGH
        if not peers.any_of(self.strategy, is_small):
            return False
        variable = found.variable if found else ""
        perturbed = [
            self._perturbed_difference(variable, mode, seed) for seed in tolerances.PERTURBATIONS
        ]
        difference = compare.gradient_of(self.truth, ours, variable)
        return is_small and not tolerances.is_computed(difference, perturbed)

    def _perturbed_difference(self, variable: str, mode: Mode, seed: int) -> np.ndarray:
        tried = self.tried.perturbed(seed)
        truth, _ = run.of_one_device(tried)
        ours = self.run(tried, mode, truth, [])
        return compare.gradient_of(truth, ours, variable)

    def describe(self, found: Found, mode: Mode) -> list[str]:
        number = self.num_replicas
        texts = assignments.describe(
            self.model, self._weights, self._states, found.outcome.deviations, number
        )
        if self._counted:
            texts.insert(0, words.of_attributes(self._counted, number))
        if found.computed:  # What follows is no news.
            asks = self.truth.asks_for_number
            return [words.of_gradient(found.computed, number, asks_for_number=asks), *texts]
        if mode is Mode.WHOLE:
            return texts
        return [*words.of_logs(self.compare_logs(found.outcome), number), *texts]


def whole_step(question: Question, how_many: HowMany, number: int) -> Tried:
    """Returns a step, to be tried with examples for so many replicas."""
    model, step = question.model, question.step
    batch = examples.of(question.batch, how_many, number)
    return Tried(
        model=model,
        step=step,
        batch=batch,
        twin=examples.twin_of(batch),
        # As the step that counts: a gradient of the user's own, which clips, sees what is weighed.
        weighs_loss=custom_parts.is_original_step(step),
        perturb=functools.partial(examples.perturbed_step, step, model),
    )


def _loss_alone(question: Question, how_many: HowMany, number: int) -> Tried | None:
    """Returns the loss of a step, to be tried alone; None where anything else can differ."""
    model = question.model
    if not custom_parts.is_loss_all_custom(model):
        return None
    batch = examples.of(question.batch, how_many, number, few=_EXAMPLES_OF_LOSS)
    predictions = _predict(model, batch)
    if predictions is None:
        return None

    def perturb(seed: int) -> Callable:
        moved = examples.perturbed(predictions, seed)
        return functools.partial(_differentiate_loss, model, moved)

    data = (batch, tf.range(batches.num_examples(batch)))
    return Tried(
        model=model,
        step=functools.partial(_differentiate_loss, model, predictions),
        batch=data,
        twin=data,
        is_read=False,
        weighs_loss=custom_parts.is_original_step(question.step),
        perturb=perturb,
    )


def _predict(model: keras.Model, batch: Any) -> Any:
    """Returns what `model` makes of the inputs; None where its examples cannot be taken apart."""
    x, *_ = keras.utils.unpack_x_y_sample_weight(batch)
    with keras.StatelessScope():  # Nothing assigned stays.
        predictions = model(x, training=False)
    is_divisible = all(
        tf.is_tensor(each)
        and each.dtype.is_floating
        and each.shape.rank
        and each.shape[0] == batches.num_examples(batch)
        and keras_losses.mask_of(each) is None
        for each in tf.nest.flatten(predictions)
    )
    return predictions if is_divisible else None


def _differentiate_loss(model: keras.Model, predictions: Any, data: tuple) -> None:
    """Stands for Keras' train_step where only the loss can differ: the gradient by predictions.

    Args:
        model: A model of which the loss alone is not Keras'.
        predictions: Of the whole batch.
        data: The share of a replica, and its positions in the whole batch [examples].
    """
    (x, y, sample_weight), positions = keras.utils.unpack_x_y_sample_weight(data[0]), data[1]
    replica: Any = replicas.current()
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        part = tf.nest.map_structure(lambda each: tf.gather(each, positions), predictions)
        loss = keras_losses.compute_loss(model, x, y, part, sample_weight)
        loss = replica.weigh(loss)  # As `scale_loss` does.
    leaves = tf.nest.flatten(predictions)
    paths = ["predictions"] * len(leaves) + [variable.path for variable in variables]
    gradients = tape.gradient(loss, [*leaves, *variables])
    gradient_aggregation.keep_update(paths, gradients, replica)


def _says_something(truth: Outcome) -> bool:
    """Whether the gradients of a whole batch are finite, and not all zero."""
    found = [each for _, gradients in truth.updates for each in gradients if each is not None]
    arrays = list(map(compare.as_array, found))
    are_finite = all(np.isfinite(each).all() for each in arrays)
    return not found or (are_finite and any(map(np.any, arrays)))
