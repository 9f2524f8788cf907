"""The base classes of callbacks that take part in a step or in the update of the weights.

Such callbacks stand between the gradient of the global batch and the optimizer, in list order. Each
is handed the gradients, and the rest of the update as a function.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.training.context import running_call
from kerasdist.training.hooks import scope_checks


class UpdateCallback(keras.callbacks.Callback):
    """A Keras callback that is part of the compiled training step.

    A subclass overrides `update`, `after_update` or both, and `prepare` if it needs variables. They
    are traced, once per replica and `fit`: write them with operations of TensorFlow or Keras; no
    Python runs later.

    Attributes:
        prepared_for: Returns the model whose variables it holds, or None. Not to be changed.
        encloses_training: Whether its hooks for the beginning of `fit`, of an epoch and of a step
            are called before those of all others, and its hooks for the end of a step and of `fit`
            after them.

    Example:
        ```python
        class Halve(UpdateCallback):
            def update(self, gradients_and_variables, apply):
                apply([(gradient / 2, variable) for gradient, variable in gradients_and_variables])
        ```
    """

    prepared_for: Callable = staticmethod(lambda: None)
    encloses_training = False

    def set_model(self, model: keras.Model):
        super().set_model(model)
        scope_checks.check_has_strategy(model, type(self).__name__)

    def prepare(self, model: keras.Model) -> None:
        """Checks that it can act on `model` and creates its variables, in the strategy's scope."""

    def update(self, gradients_and_variables: list, apply: Callable[[list], None]) -> None:
        """Changes the gradients, or when they are applied, and calls `apply` with them.

        Args:
            gradients_and_variables: Pairs of the gradient of the global batch, the same on every
                replica and not scaled, and the Keras variable. A gradient can be None.
            apply: The rest of the update.
        """
        apply(gradients_and_variables)

    def after_update(self, variables: list) -> None:
        """Acts after the optimizer has updated `variables`: all that it was given, frozen or not.

        Traced with the update: it does not run for batches that are only accumulated.
        """

    def on_train_begun(self) -> None:
        """Is called after `on_train_begin` of all callbacks."""

    def on_epoch_begun(self, epoch: int) -> None:
        """Is called after `on_epoch_begin` of all callbacks."""

    def on_test_begin(self, logs: dict | None = None):
        self._check_is_training("evaluate")

    def on_predict_begin(self, logs: dict | None = None):
        self._check_is_training("predict")

    def _check_is_training(self, method: str):
        if self not in running_call.update_callbacks_of(self.model):
            raise RuntimeError(
                f"{type(self).__name__} acts on training and has no effect in `{method}`. Give it "
                "to `fit` alone."
            )

    def describe(self) -> str:
        """Returns what it does to the update, in a few words, for the plan."""
        return type(self).__name__


class StepCallback(UpdateCallback):
    """An update callback that also takes part in the rest of the step: statistics, losses, logs.

    Attributes:
        measures_losses: Whether the step is to add up its losses, for a reader of its `losses`;
            asynchronous workers do not.
        measures_time: Whether the step is to measure where its time goes.
        guards_update: Whether it acts before all others, wherever it is in the list.
    """

    measures_losses = False
    measures_time = False
    guards_update = False

    def tracing(self, model: keras.Model) -> contextlib.AbstractContextManager:
        """Returns a context in which the step is traced."""
        return contextlib.nullcontext()

    def validating(self, model: keras.Model) -> contextlib.AbstractContextManager:
        """Returns a context for the validation during `fit`."""
        return contextlib.nullcontext()

    def looks_within(self, num_steps: int) -> bool:
        """Whether it may look at one of the next `num_steps` steps, as it does now and then.

        Steps at which no callback looks are compiled without what that takes; see
        `Replica.is_unobserved`. All workers must give the same answer. Overridden by callbacks that
        look at few steps.
        """
        return True

    def observe(self, losses: dict) -> None:
        """Looks at the losses of a step: float32 scalars of the global batch, by their log names.

        Traced once for all replicas, and only if it is overridden.
        """

    def extra_sums(self, gradients: list) -> dict:
        """Returns float32 tensors of this replica to be summed with the gradients, by unique names.

        Traced once per replica and update. `replicas.current().sums` then holds the sums.

        Args:
            gradients: Of this replica alone: tensors, IndexedSlices or None; empty for those of a
                scaled loss, which are the business of `LossScaleOptimizer`.
        """
        return {}

    def guard_scaled(self, gradients: list, optimizer: Any) -> list:
        """Returns the gradients that a `LossScaleOptimizer` is to look at.

        It makes no update if one of them is not finite; else `update` comes after it.

        Args:
            gradients: Of the global batch and of the scaled loss.
            optimizer: The `LossScaleOptimizer`.
        """
        return gradients

    def observe_gradients(self, gradients_and_variables: list) -> None:
        """Looks at the gradients of the global batch before any callback has changed them."""

    def observe_update(self, gradients_and_variables: list) -> None:
        """Looks at the gradients as the optimizer is about to get them."""

    def change_logs(self, logs: dict) -> dict:
        """Returns the logs of a step, as numbers, with what this callback adds."""
        return logs

    def variables_of_replicas(self) -> list:
        """Returns variables that hold a value per replica, and are to get the mean over them."""
        return []


def flattened(callbacks: Any) -> tuple[keras.callbacks.Callback, ...]:
    """Returns what `fit` is given as `callbacks`, in list order."""
    given = getattr(callbacks, "callbacks", None)  # The user may have made a list.
    return tuple(keras.tree.flatten(callbacks or []) if given is None else given)


def among(callbacks: Any) -> tuple[UpdateCallback, ...]:
    """Returns the update callbacks among what `fit` is given as `callbacks`, in list order.

    Raises:
        ValueError: A callback is given twice, or two decide whether there is an update.
    """
    found = [each for each in flattened(callbacks) if isinstance(each, UpdateCallback)]
    if len(set(map(id, found))) < len(found):
        twice = next(each for each in found if found.count(each) > 1)
        raise ValueError(
            f"The same {type(twice).__name__} is given twice in `callbacks`. Give each of them "
            "once."
        )
    guards = [each for each in found if _position(each) == 0]
    if len(guards) > 1:
        raise ValueError(
            f"`callbacks` has {len(guards)} of {type(guards[0]).__name__}. Give only one of them: "
            "each would decide by itself whether there is an update."
        )
    return tuple(sorted(found, key=_position))


def _position(callback: "UpdateCallback") -> int:
    # Sorting keeps the order of the others.
    return 0 if isinstance(callback, StepCallback) and callback.guards_update else 1


def of_step(callbacks: Any) -> list[StepCallback]:
    """Returns the callbacks that take part in more than the update, in list order."""
    return [each for each in callbacks if isinstance(each, StepCallback)]


def overriding(method: str, callbacks: Any) -> list[StepCallback]:
    """Returns the callbacks that do something in a method of `StepCallback`."""
    stock = getattr(StepCallback, method)
    return [each for each in of_step(callbacks) if getattr(type(each), method) is not stock]


def apply_in_order(callbacks: Any, gradients_and_variables: list, apply: Callable) -> None:
    """Hands the gradients through `callbacks` to `apply`."""
    if not callbacks or not gradients_and_variables:
        apply(gradients_and_variables)
        return
    first, *rest = callbacks
    first.update(gradients_and_variables, lambda pairs: apply_in_order(rest, pairs, apply))
