"""Training of some variables only."""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import keras

from kerasdist import patterns
from kerasdist.private import keras_layers
from kerasdist.support.checks import check_bool
from kerasdist.training.hooks.update_callback import StepCallback


class TrainableScopes(StepCallback):
    """Trains only the variables that match; all others stay bit-equal on every replica.

    Unlike `layer.trainable = False` it needs no new `compile`, and `fit` without it trains
    everything again.

    Args:
        scopes: Regular expressions that match the whole of `variable.path`, or variables. None
            trains all variables (for `freeze_batch_statistics` alone).
        freeze_batch_statistics: Whether the moving statistics of BatchNormalization stay as they
            are. Batches are still normalized with their own statistics, as with slim's
            `update_ops=[]`.

    Raises:
        TypeError, ValueError: `scopes` is empty or of the wrong type, or `freeze_batch_statistics`
            is not a bool. When `fit` begins: a scope matches no trainable variable.

    Example:
        ```python
        model.fit(dataset, callbacks=[TrainableScopes(["predictions/.*"])])
        ```

    Source: `--trainable_scopes` of train_image_classifier and `variables_to_train` of
    slim.learning.
    """

    def __init__(self, scopes: Sequence | None, *, freeze_batch_statistics: bool = False):
        super().__init__()
        if isinstance(scopes, str) or not isinstance(scopes, (Sequence, type(None))):
            raise TypeError(
                "`scopes` must be a list of regular expressions or variables. Received: "
                f"{scopes!r}."
            )
        check_bool("freeze_batch_statistics", freeze_batch_statistics)
        if not scopes and (scopes is not None or not freeze_batch_statistics):
            raise ValueError(f"`scopes` names nothing to train. Received: scopes={scopes!r}.")
        for scope in scopes or ():
            patterns.check_pattern("scopes", scope)
        self.scopes = scopes
        self.freeze_batch_statistics = freeze_batch_statistics

    def prepare(self, model: keras.Model):
        for scope in self.scopes or ():
            patterns.check_matches_something("scopes", scope, model.trainable_variables)
        if self.freeze_batch_statistics and not keras_layers.batch_normalizations_of(model):
            raise ValueError(
                f"`freeze_batch_statistics=True`, but model '{model.name}' has no "
                "BatchNormalization layer. Leave the argument out."
            )

    def update(self, gradients_and_variables: list, apply: Callable):
        apply([pair for pair in gradients_and_variables if self._is_trained(pair[1])])

    def tracing(self, model: keras.Model):
        if self.freeze_batch_statistics:
            return _statistics_frozen(model)
        return super().tracing(model)

    def describe(self):
        named = ", ".join(map(patterns.name_of, self.scopes or ()))
        parts = [f"train {named} only"] if named else []
        return ", ".join(parts + ["freeze batch statistics"] * self.freeze_batch_statistics)

    def _is_trained(self, variable: Any) -> bool:
        return self.scopes is None or any(
            patterns.matches(scope, variable) for scope in self.scopes
        )


@contextlib.contextmanager
def _statistics_frozen(model: keras.Model) -> Generator[None]:
    """Traces steps that leave the moving statistics as they are, with momentum 1."""
    layers = keras_layers.batch_normalizations_of(model)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
