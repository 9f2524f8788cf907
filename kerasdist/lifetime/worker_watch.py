"""Watches which workers and parameter servers still answer while the chief waits for one of them.

TensorFlow notices a task that has ended, and goes on without a worker. For one that is halted or
cut off it waits for ever.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import psutil

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.heartbeat_loss import HeartbeatLoss
from kerasdist.messages.address import split_address
from kerasdist.messages.addresses import is_here
from kerasdist.private import coordinator_adapter
from kerasdist.support.terminal import say

_PROBE_SECS = 2.0
_FRESH_SECS = 0.5  # An answer counts so long where many functions are new.
_REPORT_SECS = 10.0


class WorkerWatch:
    """Looks after the tasks that serve.

    Args:
        cluster: The tasks; this process is the chief.
        coordinator: TensorFlow's; each worker that it reports as lost becomes a line.
        silent_secs: How long a task may be silent before it counts as lost.
        no_worker_secs: How long to wait if no worker is left.
        clock: Seconds.
        sleep: Waits so many seconds.

    Attributes:
        has_lost: Whether a worker was ever lost.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: coordinator_adapter.ClusterCoordinator,
        *,
        silent_secs: float,
        no_worker_secs: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ):
        self._cluster = cluster
        self._coordinator = coordinator
        self._silent_secs = silent_secs
        self._no_worker_secs = no_worker_secs
        self._clock = clock
        self._sleep = sleep
        self._workers = self._heartbeats_of("worker")
        self._given_up: set[Task] = set()
        self._lost: set[Task] = set()  # TensorFlow has noticed it.
        self.has_lost = False
        self._awaited: Task | None = None
        self._probed_at = 0.0
        self._reported_at = 0.0
        self._waiting_since: float | None = None
        self._is_looking = threading.Lock()
        coordinator_adapter.report_lost_workers(
            coordinator, on_lost=self._say_lost, on_back=self._say_back
        )
        threading.Thread(target=self._guard, name="kerasdist_watch", daemon=True).start()

    @property
    def awaited(self) -> Task | None:
        """The worker that `fetch_once` waits for, or one that does not answer; None for none."""
        return self._awaited or min(self._workers.tasks(_PROBE_SECS), key=str, default=None)

    @property
    def num_lost(self) -> int:
        """How many workers are lost or given up, as far as that is known without a look."""
        return len(self._lost | self._given_up)

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Ends the process with exit code 138 if a ps falls silent during what is inside."""
        outer, self._waiting_since = self._waiting_since, self._clock()
        try:
            yield
        finally:
            self._waiting_since = outer

    def fetch(self, result: Any, again: Callable | None = None):
        """Returns the result of something that was scheduled, as numpy arrays.

        Args:
            result: What the coordinator promises.
            again: Schedules it once more, in case its worker is one that is given up.

        Raises:
            tf.errors.UnavailableError: No worker is left.
        """
        results, given_up = [result], set()
        with self.waiting():
            while not any(coordinator_adapter.wait_for(each, 1 / len(results)) for each in results):
                self._coordinator.done()  # Raises what has failed elsewhere.
                silent = self.silent_workers()
                if again and silent - given_up:
                    results.append(again())
                given_up |= silent
            return next(each for each in results if coordinator_adapter.wait_for(each, 0)).fetch()

    def fetch_once(self, result: Any, attempt: coordinator_adapter.Attempt):
        """Waits for something that runs at most once; returns its result, as numpy arrays.

        Args:
            result: What the coordinator promises.
            attempt: Its `coordinator_adapter.Attempt`; says afterwards whether the worker that had
                begun it is lost or given up.

        Raises:
            tf.errors.UnavailableError: No worker is left.
        """
        with self.waiting():
            try:
                while not coordinator_adapter.wait_for(result, 1.0):
                    self._coordinator.done()  # Raises what has failed elsewhere.
                    silent = self.silent_workers()
                    if attempt.worker is not None:
                        self._awaited = Task("worker", attempt.worker)
                    if self._awaited in silent and attempt.give_up():
                        return None
            finally:
                self._awaited = None
            return result.fetch()

    def silent_workers(self) -> set[Task]:
        """Returns the workers that are given up; looks at them now and then.

        Raises:
            tf.errors.UnavailableError: No worker is left.
        """
        if self._is_looking.acquire(blocking=False):  # The other thread may, for seconds.
            try:
                self._give_up_silent_workers()
            finally:
                self._is_looking.release()
        self._wait_for_any()
        return self._given_up

    def lost_workers(self) -> set[Task]:
        """Returns the workers that are lost or given up at this moment; looks as `silent_workers`.

        Raises:
            tf.errors.UnavailableError: No worker is left.
        """
        return self.silent_workers() | self._lost

    def _give_up_silent_workers(self, after_secs: float = _PROBE_SECS):
        """Looks at the workers if the last look was so long ago."""
        if self._clock() >= self._probed_at + after_secs:
            self._workers.look()
            self._probed_at = self._clock()
        silent = self._workers.tasks(self._silent_secs)
        for task in silent - self._given_up:
            self.has_lost = True
            if task not in self._lost:  # That has been said already.
                say(f"{self._name(task)} gives no sign of life: its steps go to the others.")
            _kill_if_halted(self._cluster.addresses[task])
        self._given_up = silent

    def wait_for_halted_workers(self) -> None:
        """Waits until no worker is halted but those that are given up."""
        while True:
            with self._is_looking:
                self._give_up_silent_workers(_FRESH_SECS)
            if self._workers.halted <= self._given_up:
                return
            self._sleep(_FRESH_SECS)

    def _wait_for_any(self):
        secs = self._workers.secs_of_all()
        if secs > self._no_worker_secs:
            raise peer_failure.lost(f"no worker is left, for {self._no_worker_secs:g} s.")
        if secs > _REPORT_SECS and self._clock() > self._reported_at + _REPORT_SECS:
            self._reported_at = self._clock()
            names = self._names(self._workers.tasks(0))
            say(f"Waiting for a worker: {names}, {secs:.0f} s of {self._no_worker_secs:g} s.")

    def _guard(self):
        servers = self._heartbeats_of("ps")
        while True:
            self._sleep(_PROBE_SECS)
            # Whatever the main thread does: TensorFlow may wait there for a halted worker, too,
            # which has to hear of each new function.
            with self._is_looking:
                self._give_up_silent_workers()
            since = self._waiting_since
            if since is None or self._clock() < since + _PROBE_SECS:
                continue
            servers.look()
            if (silent := servers.tasks(self._silent_secs)) and self._waiting_since:
                peer_failure.end(f"{self._names(silent)} gives no sign of life.", self._cluster)

    def _heartbeats_of(self, job: str) -> HeartbeatLoss:
        addresses = self._cluster.addresses
        return HeartbeatLoss(
            {task: address for task, address in addresses.items() if task.job == job},
            clock=self._clock,
        )

    def _say_lost(self, index: int):
        self.has_lost = True
        task = Task("worker", index)
        self._lost.add(task)
        name = self._name(task)
        say(f"{name} is lost: its steps go to the others, until it is there again.")

    def _say_back(self, index: int):
        task = Task("worker", index)
        self._lost.discard(task)
        say(f"{self._name(task)} is back.")

    def _names(self, tasks: set[Task]) -> str:
        return ", ".join(self._name(task) for task in sorted(tasks, key=str))

    def _name(self, task: Task) -> str:
        return self._cluster.describe(task)


def _kill_if_halted(address: str) -> None:
    """Kills the process at an address if it is on this machine and somebody has halted it.

    TensorFlow goes on without a worker that is gone. For one that is halted it waits whenever it
    has something to tell all of them.
    """
    _, port = split_address(address)
    with contextlib.suppress(psutil.Error, OSError):  # The name of a machine may be gone with it.
        if not is_here(address):
            return
        for connection in psutil.net_connections("tcp"):
            is_server = connection.status == psutil.CONN_LISTEN and connection.pid
            if is_server and connection.laddr.port == port:
                process = psutil.Process(connection.pid)
                if process.status() == psutil.STATUS_STOPPED:
                    process.kill()
