"""The workers of a round: who has which seat, and what happens where one is lost.

Each seat is a function that some worker runs until it is told to stop. A thread looks whether one
of them ends before, and interrupts what the chief waits for.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.cluster import Task
from kerasdist.private import coordinator_adapter
from kerasdist.training.synchronous_servers.rounds import Rounds

_LOOK_SECS = 0.1


class Seats:
    """Places of workers.

    Args:
        rounds: What they do.
        num_seats: How many.
        watch: Which workers are lost.

    Attributes:
        tokens: The queue of each seat.
        incarnations: The number of each, which no worker had that had the seat before.
    """

    def __init__(self, rounds: Rounds, num_seats: int, watch: Any):
        self._rounds, self._watch = rounds, watch
        self.tokens = [rounds.new_queue() for _ in range(num_seats)]
        self.incarnations = [0] * num_seats
        self._numbers = itertools.count(1)
        # What the coordinator promises, and the attempt, of each seat; no seats while none works.
        self._work: list[tuple] = []
        self._start: Any = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: dict[int, Any] = {}  # The attempts of seats whose workers have ended.
        self._failure: Exception | None = None

    @property
    def are_open(self) -> bool:
        """Whether workers compute."""
        return bool(self._work)

    @property
    def workers(self) -> list[int | None]:
        """The index of the worker on each seat; None where none has come."""
        return [attempt.worker for _, attempt in self._work]

    def open(self, start: Callable[[int], tuple]) -> None:
        """Lets workers take the seats.

        Args:
            start: Called as start(seat); schedules the function of a seat, and returns what the
                coordinator promises and the attempt.
        """
        self._start, self._failure = start, None
        self._ended.clear()
        self._is_over.clear()
        for seat in range(len(self.tokens)):
            self.incarnations[seat] = next(self._numbers)
            self._work.append(start(seat))
        self._thread = threading.Thread(target=self._look, name="kerasdist_seats", daemon=True)
        self._thread.start()

    def take_lost(self) -> list[int]:
        """Returns the seats whose workers are lost, and gives them to whoever comes back.

        Raises:
            tf.errors.UnavailableError: No worker is left.
            Exception: What the program has raised on a worker.
        """
        if self._failure is not None:
            raise self._failure
        lost = []
        for seat, ended in list(self._ended.items()):
            promise, attempt = self._work[seat]
            if ended is attempt and not attempt.is_lost:
                self._stop()  # TensorFlow waits for all others before it raises the error of one.
                self._watch.fetch_once(promise, attempt)
            elif ended is attempt:
                lost.append(seat)
        for seat in lost:
            # One that was given up, and comes back, has a place to read that it is to stop.
            self._rounds.stop(self.tokens[seat])
            self.tokens[seat] = self._rounds.new_queue()
            self.incarnations[seat] = next(self._numbers)
            self._work[seat] = self._start(seat)
            del self._ended[seat]
        return lost

    def close(self) -> None:
        """Lets all workers stop, and waits until they have.

        Raises:
            Exception: What the program has raised on a worker.
        """
        if not self._work:
            return
        self._end_thread()
        self._stop()
        while self._work:
            promise, attempt = self._work.pop(0)
            self._watch.fetch_once(promise, attempt)

    def abandon(self) -> None:
        """As `close`, after an error."""
        self._end_thread()
        with contextlib.suppress(tf.errors.OpError):
            self._stop()
        for promise, attempt in self._work:
            with contextlib.suppress(tf.errors.OpError, *coordinator_adapter.INPUT_ERRORS):
                self._watch.fetch_once(promise, attempt)
        self._work.clear()
        # A worker that has not come as far has not read that it is to stop.
        self.tokens = [self._rounds.new_queue() for _ in self.tokens]

    def _stop(self) -> None:
        for tokens in self.tokens:
            self._rounds.stop(tokens)

    def _end_thread(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_SECS):
            try:
                ended = self._find_ended()
            except tf.errors.UnavailableError as error:
                self._failure = error
                self._rounds.interrupt()
                return
            if ended.keys() - self._ended.keys():
                self._ended.update(ended)
                self._rounds.interrupt()

    def _find_ended(self) -> dict[int, Any]:
        """Returns the attempts that have ended, with an error or because a worker is lost."""
        # A lost one's attempt is not ended before another worker has time for it.
        lost = self._watch.lost_workers()
        ended = {}
        for seat, (promise, attempt) in enumerate(list(self._work)):
            task = None if attempt.worker is None else Task("worker", attempt.worker)
            is_given_up = task in lost and attempt.give_up()
            if is_given_up or coordinator_adapter.wait_for(promise, 0):
                ended[seat] = attempt
        return ended
