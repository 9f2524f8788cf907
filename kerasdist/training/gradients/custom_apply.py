"""Call the `apply` of custom optimizers with the gradient of the global batch.

Gradient centralization, adaptive clipping, hypergradients and the like override `apply` or
`apply_gradients`, change the gradients or learn something from their norms, and call that of Keras.
Keras' MultiOptimizer divides them among others.
The replicas' gradients have met then, and the callbacks have had theirs: what is routed is the
outermost call, and what it calls in turn passes.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import keras

from kerasdist.private import custom_parts, keras_optimizers
from kerasdist.support.replaced_method import method_replaced
from kerasdist.training.context import traits
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica import replicas


@contextlib.contextmanager
def routed(model: keras.Model) -> Generator[None]:
    """Lets those of the optimizers of `model` ask `gradient_aggregation` first, as Keras' does.

    With parameter servers a worker has the gradient of its whole batch; only one that divides it
    among other optimizers is routed, for the variables themselves and for the callbacks.
    """
    is_async = traits.is_async(model.distribute_strategy)
    with contextlib.ExitStack() as stack:
        for optimizer, name in custom_parts.custom_applies_of(model):
            if not is_async or keras_optimizers.divides(optimizer):
                route = _ROUTES[name]
                stack.enter_context(method_replaced(optimizer, name, route, optimizer))
        yield


def _apply(own: Callable, optimizer: Any, grads: Any = None, *args: Any, **kwargs: Any) -> Any:
    if grads is None:  # They have another name there.
        return own(*args, **kwargs)
    variables = args[0] if args else kwargs.get("trainable_variables")

    def call(gradients: Iterable, updated: list, *, is_as_given: bool) -> Any:
        if isinstance(grads, tuple):  # As of `apply_gradients`.
            gradients = tuple(gradients)
        if is_as_given:
            return own(gradients, *args, **kwargs)
        if args:
            return own(gradients, updated, *args[1:], **kwargs)
        return own(gradients, **{**kwargs, "trainable_variables": updated})

    if _passes(grads):
        return own(grads, *args, **kwargs)
    return _run(call, optimizer, grads, variables)


def _apply_gradients(
    own: Callable, optimizer: Any, grads_and_vars: Iterable, *args: Any, **kwargs: Any
) -> Any:
    pairs = list(grads_and_vars)

    def call(gradients: Iterable, updated: list, *, is_as_given: bool) -> Any:
        return own(list(zip(gradients, updated, strict=True)), *args, **kwargs)

    if _passes(pairs):
        return own(pairs, *args, **kwargs)
    gradients, variables = zip(*pairs, strict=True)
    result = _run(call, optimizer, gradients, variables)
    return optimizer.iterations if result is None else result


_ROUTES = {"apply": _apply, "apply_gradients": _apply_gradients}


def _passes(gradients: Any) -> bool:
    replica = replicas.current()
    return replica is None or replica.updates.are_in_custom_apply or not len(gradients)


def _run(call: Callable, optimizer: Any, gradients: Iterable, variables: Any) -> Any:
    """Calls a method of the user's own with the gradient of the global batch.

    Returns:
        What it does; None where it is called inside of what a callback decides, or in a trial,
        which looks at the gradient only.
    """
    replica = replicas.current()
    assert replica is not None
    results: list = []
    if variables is not None:
        variables = list(variables)

    def own(_: Any, gradients: Iterable, updated: list) -> None:
        given = variables or keras_optimizers.variables_trained_by(optimizer)
        is_as_given = [id(each) for each in updated] == [id(each) for each in given]
        # A LossScaleOptimizer only hands over to its inner one, which the callbacks are for.
        is_last = not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        # The chief of synchronous workers traces it for a replica of its own.
        replica = replicas.current()
        assert replica is not None
        with _in_custom_apply(replica) if is_last else contextlib.nullcontext():
            results.append(call(gradients, updated, is_as_given=is_as_given))

    gradient_aggregation.apply(own, optimizer, gradients, variables)
    return results[0] if results and not replica.options.callbacks else None


@contextlib.contextmanager
def _in_custom_apply(replica: replicas.Replica) -> Generator[None]:
    """Calls such an `apply`: what Keras' own then gets has had the callbacks already."""
    replica.updates.are_in_custom_apply = True
    try:
        yield
    finally:
        replica.updates.are_in_custom_apply = False
