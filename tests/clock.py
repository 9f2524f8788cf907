"""A clock that stands until a test moves it."""


class Clock:
    """Stands in for `time.monotonic`; its `sleep` for `time.sleep`."""

    def __init__(self):
        self.secs = 1000.0  # Long after 0, as the real one.

    def __call__(self) -> float:
        return self.secs

    def sleep(self, secs: float) -> None:
        """Lets time pass, at once."""
        self.secs += secs
