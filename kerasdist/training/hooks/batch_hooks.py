"""The user's callbacks with a hook for each batch, which may change weights or the learning rate.

If there is one worker, no step runs ahead of such a hook: the next one sees what it has changed, as
on one device. Several workers never wait for a callback, so it acts some steps later there.
"""

from collections.abc import Iterable

from kerasdist.private import custom_parts


def owners(callbacks: Iterable) -> list[str]:
    """Returns the class names of those callbacks that have such a hook, each once, in list order.

    Args:
        callbacks: Those of a `fit`; a wrapper counts as the callback that it wraps.
    """
    innermost = (getattr(callback, "innermost", callback) for callback in callbacks)
    owners = filter(custom_parts.has_custom_batch_hook, innermost)
    return list(dict.fromkeys(type(owner).__name__ for owner in owners))


def describe(owners: list[str], steps_per_call: int) -> str:
    """Returns the line that says what the hooks cost.

    Args:
        owners: At least one name.
        steps_per_call: How many steps run between two calls of a hook.
    """
    steps = "one" if steps_per_call == 1 else f"{steps_per_call} per call, one call"
    return (
        f"Steps: {steps} at a time, {reason(owners)}, which may change weights. Small steps are "
        'slower this way: docs/parameter_servers.md, "Callbacks with a hook for each batch".'
    )


def reason(owners: list[str]) -> str:
    """Returns why no step runs ahead, given at least one name."""
    have = "has" if len(owners) == 1 else "have"
    return f"because {', '.join(owners)} {have} a hook for each batch"
