"""Clocks for tests that do not wait."""


class Clock:
    """Stands until a test moves it; it is `time.monotonic`, its `sleep` is `time.sleep`."""

    def __init__(self):
        self.secs = 1000.0  # Long after 0, as the real one.

    def __call__(self) -> float:
        return self.secs

    def sleep(self, secs: float) -> None:
        """Lets time pass, at once."""
        self.secs += secs


class RunningClock(Clock):
    """Moves on by a minute whenever it is looked at."""

    def __call__(self) -> float:
        self.secs += 60
        return self.secs
