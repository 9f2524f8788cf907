"""Says at the end of a `fit` whose batches came too late for their updates."""

import numpy as np

from kerasdist.support.text import counted


def describe(num_dropped: np.ndarray) -> str | None:
    """Returns a line about the batches that were dropped, and computed again; None if none were.

    Args:
        num_dropped: See `TrainFunction`.
    """
    workers = [int(each) for each in np.argsort(-num_dropped, kind="stable") if num_dropped[each]]
    if not workers:
        return None
    first, *others = workers
    parts = [
        f"{counted(int(num_dropped[first]), 'batch', 'batches')} of worker {first}",
        *(f"{num_dropped[each]} of worker {each}" for each in others),
    ]
    return (
        f"Stale, as their updates did not wait for them: {', '.join(parts)}. Each was dropped, and "
        "computed again for a later update."
    )
