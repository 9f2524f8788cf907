"""A training whose numbers are no longer finite: it ends, and its weights are not kept."""

from ..usage_error import RunError


class DivergedError(RunError):
    """Training cannot go on; the message names the step, and what was not finite first.

    Args:
        cause: What `kerasdist.callbacks.StopOnNonFinite` raises.
    """

    def __init__(self, cause: FloatingPointError):
        super().__init__(
            f"{cause} Training has diverged, and no model is saved. Lower --learning_rate, or look "
            "for examples that are not numbers."
        )
