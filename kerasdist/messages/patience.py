"""A wait for others that has a limit, and says for whom it waits."""

from collections.abc import Callable

_PROGRESS_SECS = 10.0


class Patience:
    """Counts the time of a wait, and reports it every ten seconds.

    Args:
        timeout_secs: How long to wait.
        report: Takes a line of progress.
        clock: Seconds.
    """

    def __init__(
        self,
        timeout_secs: float,
        *,
        report: Callable[[str], object],
        clock: Callable[[], float],
    ):
        self.timeout_secs = timeout_secs
        self._report = report
        self._clock = clock
        self._started_at = clock()
        self._next_report_at = _PROGRESS_SECS

    @property
    def secs(self) -> float:
        """How long it has lasted."""
        return self._clock() - self._started_at

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached."""
        return self.secs >= self.timeout_secs

    def report(self, waits_for: str) -> bool:
        """Reports for whom this process waits, if ten seconds have passed; returns whether so."""
        is_due = self.secs >= self._next_report_at
        if is_due:
            self._next_report_at = self.secs + _PROGRESS_SECS
            secs = f"{self.secs:.0f} s of {self.timeout_secs:g} s"
            self._report(f"Waiting for {waits_for}, {secs}.")
        return is_due
