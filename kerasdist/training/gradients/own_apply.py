"""Optimizers with an `apply` of the user's own, which gets the gradient of the global batch.

Gradient centralization, adaptive clipping, hypergradients and the like override `apply` or
`apply_gradients`, change the gradients or learn something from their norms, and call that of Keras.
Keras' MultiOptimizer divides them among others.
The replicas' gradients have met then, and the callbacks have had theirs: what is routed is the
outermost call, and what it calls in turn passes.
"""

import contextlib
from collections.abc import Callable, Generator

import keras

from kerasdist.private import custom_parts, keras_optimizers
from kerasdist.support.replaced_method import method_replaced
from kerasdist.training.context import traits
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica import replicas


@contextlib.contextmanager
def routed(model) -> Generator[None]:
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


def _apply(own: Callable, optimizer, grads=None, *args, **kwargs):
    if grads is None:  # They have another name there.
        return own(*args, **kwargs)
    variables = args[0] if args else kwargs.get("trainable_variables")

    def call(gradients, updated, *, is_as_given: bool):
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


def _apply_gradients(own: Callable, optimizer, grads_and_vars, *args, **kwargs):
    pairs = list(grads_and_vars)

    def call(gradients, updated, *, is_as_given: bool):
        return own(list(zip(gradients, updated, strict=True)), *args, **kwargs)

    if _passes(pairs):
        return own(pairs, *args, **kwargs)
    gradients, variables = zip(*pairs, strict=True)
    result = _run(call, optimizer, gradients, variables)
    return optimizer.iterations if result is None else result


_ROUTES = {"apply": _apply, "apply_gradients": _apply_gradients}


def _passes(gradients) -> bool:
    is_outermost = not gradient_aggregation.is_in_own_apply()
    return replicas.current() is None or not is_outermost or not len(gradients)


def _run(call: Callable, optimizer, gradients, variables):
    """Calls a method of the user's own with the gradient of the global batch.

    Returns:
        What it does; None where it is called inside of what a callback decides, or in a rehearsal,
        which looks at the gradient only.
    """
    step = replicas.current()
    results: list = []
    if variables is not None:
        variables = list(variables)

    def own(_, gradients, updated):
        given = variables or keras_optimizers.variables_trained_by(optimizer)
        is_as_given = [id(each) for each in updated] == [id(each) for each in given]
        # A LossScaleOptimizer only hands over to its inner one, which the callbacks are for.
        is_last = not isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        with gradient_aggregation.in_own_apply() if is_last else contextlib.nullcontext():
            results.append(call(gradients, updated, is_as_given=is_as_given))

    gradient_aggregation.apply(own, optimizer, gradients, variables)
    return results[0] if results and step is not None and not step.options.callbacks else None
