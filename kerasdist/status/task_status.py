"""What is known of this task: where it is, and the numbers that others may read."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from kerasdist.cluster import Cluster
from kerasdist.status.number import Number
from kerasdist.support import environment, memory
from kerasdist.support.background import in_background
from kerasdist.support.version import installed_version

# In the order in which a task is in them.
STARTING, JOINED, TRAINING, SERVING, ENDED = "starting", "joined", "training", "serving", "ended"
_STATES = (STARTING, JOINED, TRAINING, SERVING, ENDED)
# A parameter server that is halted never answers; who reads is told what was known before.
_READ_SECS = 2.0


class TaskStatus:
    """What others may know of this process.

    The threads of a port and of a file read it, while the program writes it.

    Args:
        clock: Returns seconds since 1970.

    Attributes:
        state: One of those above.
        is_told: Whether the environment was asked how to tell it.
        tells_kubeflow: Whether Kubeflow gets reports.
        measures_time: Whether steps are to measure what they wait for.
        past_steps: Steps of `fit` in this process, when they were last read.
        past_examples: The examples of these steps, over all workers.
        describe_stuck: Returns why the process will not go on by itself; "" if nothing is wrong.
    """

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._facts: list[Number] = []
        self._read_training: Callable[[], list[Number]] | None = None
        self._latest: list[Number] = []  # Of the training, when it was last read.
        self._reading: Future[list[Number]] | None = None
        self._checkpoint: tuple[int, float, float | None] | None = None
        self._num_readers = 0
        self._has_trained = False
        self.state, self.is_told, self.tells_kubeflow = STARTING, False, False
        self.measures_time = False
        self.past_steps = self.past_examples = 0
        self.describe_stuck: Callable[[], str] = str

    @property
    def is_watched(self) -> bool:
        """Whether anybody reads the numbers of a training."""
        return self._num_readers > 0

    @property
    def is_training(self) -> bool:
        """Whether a `fit` is read."""
        return self._read_training is not None

    def add_reader(self) -> None:
        """Notes that the numbers of the trainings that begin from now on are read."""
        self._num_readers += 1

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all numbers: the run and the task. Prometheus adds "job" by itself."""
        labels = {}
        if run_id := os.environ.get(environment.RUN_ID, ""):
            labels["run_id"] = run_id
        if self._cluster is not None:
            task = self._cluster.task
            labels |= {"task_type": task.job, "task_index": str(task.index)}
        return labels

    @property
    def task(self) -> str:
        """The name of this task, such as "worker 1"."""
        return "" if self._cluster is None else str(self._cluster.task)

    def describe_not_ready(self) -> str:
        """Returns what it waits for before it does its work; "" once it does."""
        if self.state == SERVING or (self.state != STARTING and self._has_trained):
            return ""
        if self.state == STARTING:
            return "it waits for the other tasks of its cluster"
        return "it has met its cluster, and no step of `fit` has ended"

    def begin(self, cluster: Cluster) -> None:
        """Notes which task this is, before it meets the others."""
        self._cluster = cluster
        restarts = os.environ.get(environment.RESTART_COUNT, "")
        self._facts = [
            Number("workers", cluster.num_workers, "Workers of the cluster, which train."),
            Number("parameter_servers", cluster.num_ps, "Parameter servers of the cluster."),
            Number(
                "restarts_total",
                int(restarts) if restarts.isdecimal() else 0,
                "Restarts of the cluster so far.",
            ),
            Number(
                "info",
                1,
                "The version of kerasdist.",
                {"version": installed_version() or "not installed"},
            ),
        ]

    def note_joined(self, describe_stuck: Callable[[], str] | None) -> None:
        """Notes that it has met the others; takes what `describe_stuck` is to be, or None."""
        if self.state == STARTING:
            self.state = JOINED
        if describe_stuck is not None:
            self.describe_stuck = describe_stuck

    def note_replicas(self, num_replicas: int) -> None:
        """Notes how many copies of the model the strategy has, on all workers."""
        self._facts.append(Number("replicas", num_replicas, "Replicas on all workers."))

    def note_checkpoint(self, step: int, *, written_at: float, secs: float | None = None) -> None:
        """Notes the newest checkpoint that is complete.

        Args:
            step: That of the checkpoint.
            written_at: Seconds since 1970.
            secs: How long it took to write; None for one that an earlier process has written.
        """
        self._checkpoint = step, written_at, secs

    def begin_training(self, read: Callable[[], list[Number]]) -> None:
        """Notes that a `fit` begins.

        Args:
            read: Returns its numbers at this moment; called from other threads.
        """
        self._read_training, self.state = read, TRAINING

    def note_step(self) -> None:
        """Notes that a step of `fit` has ended."""
        self._has_trained = True

    def end_training(self) -> None:
        """Notes that a `fit` has ended, and reads its numbers a last time."""
        with self._lock:
            self._read_bounded()
            self._read_training, self.state = None, JOINED

    def numbers(self) -> list[Number]:
        """Returns all that is known at this moment; in a few seconds at most."""
        with self._lock:
            self._read_bounded()
        states = [
            Number("state", int(self.state == state), "What the task does.", {"state": state})
            for state in _STATES
        ]
        return [*states, *self._facts, *self._latest, *self._numbers_of_checkpoint()]

    def _read_bounded(self) -> None:
        """Reads the numbers of the training, unless the last attempt to do so still waits."""
        if self._read_training is None or (self._reading and not self._reading.done()):
            return
        self._reading = in_background(self._read_training)
        try:
            self._latest = self._reading.result(_READ_SECS)
        except Exception:  # noqa: BLE001
            # A server is silent or gone, or a callback has compiled the model at this moment: the
            # training hears of it by itself, and who reads is told what was known before.
            return

    def _numbers_of_checkpoint(self) -> Sequence[Number]:
        if self._checkpoint is None:
            return ()
        step, written_at, secs = self._checkpoint
        age = max(self._clock() - written_at, 0.0)
        numbers = [
            Number("checkpoint_step", step, "The step of the newest checkpoint."),
            Number("checkpoint_timestamp_seconds", written_at, "When it was complete, since 1970."),
            Number("checkpoint_age_seconds", age, "Seconds since it was complete."),
        ]
        if secs is not None:
            numbers.append(
                Number("checkpoint_duration_seconds", secs, "How long it took to write it.")
            )
        return numbers


def of_process() -> TaskStatus:
    """Returns the status of this process, which is there whether or not anybody reads it."""
    if memory.PROCESS.status is None:
        memory.PROCESS.status = TaskStatus()
    return memory.PROCESS.status
