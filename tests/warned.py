"""What a program is warned of, also by a function that another process runs."""

import warnings
from collections.abc import Callable


def warned_by(run: Callable[[], object]) -> list[str]:
    """Returns the texts of all warnings in `run()`, in their order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught]
