"""Whether a step gives what one device gives with compiled losses that see all examples."""

import contextlib
from collections.abc import Callable

from kerasdist.private import custom_parts
from kerasdist.training.context import peers
from kerasdist.training.context.announcements import announce
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.losses import whole_losses
from kerasdist.training.trial import loss_rows


def compared(
    model, compare: Callable[[], tuple], called: list, tolerance: float, num_examples: int
) -> tuple:
    """Returns what `compare` gives; where it finds something, with losses of all examples instead.

    So, too, where one of the user's losses is no mean over the examples, which need not show in the
    ones that are compared. Where `compare` then finds nothing on any worker, the user's losses see
    all examples from now on.

    Args:
        model: A compiled model.
        compare: Compares a rehearsed step of the replicas with that of one device; returns what
            came of it, and what differs, or nothing. All workers call it.
        called: The `Rehearsed.own_losses` of one device.
        tolerance: How much of a loss's gradient may be rounding.
        num_examples: Of a batch, of which some are compared.
    """
    strategy = model.distribute_strategy
    outcome, difference = compare()
    if not whole_losses.may_see_all(model):
        return outcome, difference
    is_wanted = bool(difference) or not all(
        loss_rows.is_mean(*each, tolerance, num_examples) for each in called
    )
    if not peers.any_of(strategy, is_wanted):
        return outcome, difference
    compiled = custom_parts.compiled_losses_of(model)
    with contextlib.ExitStack() as stack:
        whole_losses.compiled_whole.add(compiled)
        stack.callback(whole_losses.compiled_whole.discard, compiled)
        try:
            mended = compare()
        except Exception:  # Of the user's loss. What was found before is said.
            return outcome, difference
        if peers.any_of(strategy, mended[1]):
            return outcome, difference
        stack.pop_all()  # It stays.
    for function in (model.train_function, model.test_function):
        if isinstance(function, TrainFunction):
            function.trace_again()
    if peers.is_chief(strategy):
        announce(_describe(model))
    return mended


def _describe(model) -> str:
    names = ", ".join(f"'{each}'" for each in custom_parts.custom_loss_names(model))
    return (
        f"Loss: {names} of the model '{model.name}' is no mean over the examples, so each replica "
        "computes it from the whole batch, which a check has found to give what one device gives. "
        "In each step the replicas send each other labels, predictions and sample weights. A sum, "
        "or a mean with a divisor of its own, costs less as `kerasdist.global_sum(values)` or "
        "`kerasdist.global_mean(values, weights=mask)`."
    )
