"""Who has all workers beside parameter servers compute for it, until another one needs them."""

import contextlib
from collections.abc import Callable, Generator


class Occupation:
    """Lets what is scheduled on workers not wait for ever behind what occupies them.

    Synchronous workers compute one batch after the other until they are told to stop, also between
    two calls of `fit`, where a callback may ask for an evaluation.
    """

    def __init__(self):
        self._let_go: Callable[[], object] | None = None

    def begin(self, let_go: Callable[[], object]) -> None:
        """Notes that all workers are occupied; `let_go` ends that."""
        self._let_go = let_go

    def end(self) -> None:
        """Notes that they are free, or that who occupies them schedules something itself."""
        self._let_go = None

    def make_way(self) -> None:
        """Lets workers be free for something else."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    @contextlib.contextmanager
    def ended_behind(self) -> Generator[None]:
        """Lets workers be free behind what is inside, whatever ends it."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # The first error is the one to know.
                self.make_way()
            raise
        self.make_way()
