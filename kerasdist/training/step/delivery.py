"""How the gradients of the global batch reach the variables of a step."""

import contextlib
from collections.abc import Callable


class LocalDelivery:
    """They are where the variables are: each replica updates its own copy."""

    def updating(self, optimizer) -> contextlib.AbstractContextManager:
        """Returns a context in which `optimizer` updates the variables."""
        return contextlib.nullcontext()

    def carry_out(self, update: Callable) -> None:
        """Traces `update()`: what an optimizer and the callbacks do with the gradients."""
        update()

    def apply(self, stock, optimizer, gradients: list, variables: list):
        """Calls `stock(optimizer, gradients, variables)`, which is Keras' own update."""
        return stock(optimizer, gradients, variables)
