"""Hand the gradients of the global batch to the variables of a step."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.private import variable_adapter


class LocalDelivery:
    """They are where the variables are: each replica updates its own copy.

    Attributes:
        needs_divisors: Whether it asks what the losses were divided by.
        is_apart: Whether what follows the sum is traced in another graph, once for several steps.
            Of the step, that graph has what came of the callbacks' `extra_sums`, and no more.
        num_batches: Of how many batches, each of the size of the step's, an update is made.
    """

    needs_divisors = is_apart = False
    num_batches = 1

    def hand_over(self, rest: Callable, gradients: list, variables: list, replica: Any):
        """Hands the gradients of the global batch to what follows: callbacks, and the optimizer.

        Args:
            rest: Called as rest(gradients, replica); traces it.
            gradients: The sum over the replicas: tensors, IndexedSlices or None.
            variables: Keras' or TensorFlow's.
            replica: The one that has computed them.

        Returns:
            What `rest` does, where that is known.
        """
        return rest(gradients, replica)

    def updating(self, optimizer: Any) -> contextlib.AbstractContextManager:
        """Returns a context in which `optimizer` updates the variables."""
        return contextlib.nullcontext()

    def carry_out(self, update: Callable, *, is_divided: bool = False):
        """Traces `update()`: what an optimizer and the callbacks do with the gradients.

        Args:
            update: Calls `apply`.
            is_divided: Whether other optimizers carry out parts of it, within.

        Returns:
            What `update` does, where that is known.
        """
        return update()

    def apply(self, original: Callable, optimizer: Any, gradients: list, variables: list):
        """Calls `original(optimizer, gradients, variables)`, which is Keras' own update."""
        return original(optimizer, gradients, variables)

    def clip(self, original: Callable, optimizer: Any, gradients: list):
        """Calls `original(optimizer, gradients)`, which clips what the optimizer is to clip."""
        return original(optimizer, gradients)

    def assign_number(self, original: Callable, optimizer: Any, variable: Any, value: Any) -> None:
        """Calls `original(optimizer, variable, value)`, which assigns to what the optimizer has."""
        original(optimizer, variable, value)

    def add_in_place(self, variable: keras.Variable, value: Any) -> None:
        """Adds to a variable where it lives, in one operation."""
        variable_adapter.add_in_place(variable, value)
