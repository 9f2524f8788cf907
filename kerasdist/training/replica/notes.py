"""The notes of one replica while its step is traced: losses, gradients, updates, states."""

import dataclasses
from typing import Any


class WholeGradients:
    """Gradients of the global batch, and what of them is of one replica."""

    def __init__(self):
        self._pairs: dict = {}

    def __len__(self):
        return len(self._pairs)

    def __contains__(self, gradient: Any):
        return id(gradient) in self._pairs

    def add(self, gradient: Any, own: Any) -> None:
        """Adds one of the global batch, with that of this replica."""
        self._pairs[id(gradient)] = gradient, own  # While it is here, no other has its id.

    def has_rows_of(self, gradient: Any) -> bool:
        """Whether a gradient is slices of the rows of one of them, in their order."""
        indices = getattr(gradient, "indices", None)
        return indices is not None and any(
            getattr(whole, "indices", None) is indices for whole, _ in self._pairs.values()
        )

    def tensors(self) -> list:
        """Returns those of the global batch."""
        return [whole for whole, _ in self._pairs.values()]

    def own(self, gradient: Any) -> Any:
        """Returns what this replica has added to a gradient, which is all of any other one."""
        return self._pairs[id(gradient)][1] if gradient in self else gradient


@dataclasses.dataclass(kw_only=True, slots=True)
class Division:
    """A scaled loss that was divided by the number of replicas, or of the batches of an update.

    Attributes:
        loss: As the program has it.
        optimizer: The one that has scaled it.
        is_undone: Whether the gradients that the tape has given are multiplied again.
    """

    loss: Any
    optimizer: Any
    is_undone: bool = False


@dataclasses.dataclass(kw_only=True, slots=True)
class LossNotes:
    """What the losses of one replica are, as they are computed.

    Attributes:
        means: The mean losses by the names of their metrics, as they are tracked.
        added: What layers have added with `add_loss`, by the layer's id.
        divisors: What each loss was divided by, in the order in which they were computed; on one
            device only where somebody asks.
        scalars: The `ScalarUpdate`s of metrics.
        divisions: The losses that were divided by the number of replicas.
        call: Where the replica is among the losses given to `compile`, while these are computed.
    """

    means: dict = dataclasses.field(default_factory=dict)
    added: dict = dataclasses.field(default_factory=dict)
    divisors: list = dataclasses.field(default_factory=list)
    scalars: list = dataclasses.field(default_factory=list)
    divisions: list = dataclasses.field(default_factory=list)
    call: Any = None


@dataclasses.dataclass(kw_only=True, slots=True)
class UpdateNotes:
    """The updates of one replica, as they are traced.

    Attributes:
        graphs: Those in which an optimizer was called.
        optimizers: Those whose updates the callbacks took part in.
        are_local: Whether the replica holds the gradient of the global batch now, and updates its
            own copy of the variables.
        are_in_custom_apply: Whether it is in an `apply` of a program's own optimizer, which has
            that gradient.
        deferred: Calls of optimizers, each with gradients and variables, that are to be made behind
            what XLA compiles; None where nothing is.
    """

    graphs: list = dataclasses.field(default_factory=list)
    optimizers: list = dataclasses.field(default_factory=list)
    are_local: bool = False
    are_in_custom_apply: bool = False
    deferred: list | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class StateNotes:
    """What a step does with the states that are no weights.

    Attributes:
        discards: Bool scalars, any of which says that the step is to leave nothing behind: no count
            in metrics, no moving statistics. They are the same on all replicas.
        resets: The values, by the ids of their variables, that metrics have been reset to.
    """

    discards: list = dataclasses.field(default_factory=list)
    resets: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True, slots=True)
class TrialNotes:
    """What a step does in a trial, which counts for nothing.

    Attributes:
        updates: Paths of the variables and their gradients of each update, which is not made.
        custom_losses: Compiled losses of the program's own, each with labels and predictions.
    """

    updates: list = dataclasses.field(default_factory=list)
    custom_losses: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Divisor:
    """What the loss of a global batch is divided by.

    Attributes:
        name: What it is, in words.
        total: Scalar over all replicas; None for a sum, which is divided by nothing.
        weights: The mask or weights of this replica that `total` is the sum of, or None.
        local: Their sum on this replica.
        loss: What was divided.
    """

    name: str
    total: Any
    weights: Any = None
    local: Any = None
    loss: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalarUpdate:
    """One number for a whole batch, by which a `keras.metrics.Mean` was updated.

    Attributes:
        metric: The metric.
        value: The number.
        is_weighed: Whether it was given a weight.
    """

    metric: Any
    value: Any
    is_weighed: bool
