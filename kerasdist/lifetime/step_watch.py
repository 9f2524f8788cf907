"""Watches who is late when a step of synchronous workers takes far longer than those before.

A worker that is alive but stuck, in a callback or in its data, still sends heartbeats, and all
others wait for its gradients. So a thread of each worker watches its steps. If they stop, it notes
the worker's progress at TensorFlow's coordination service, and reads those of the others: the least
advanced worker is late. Its log gets the stacks of all its threads. After a limit the job ends.
"""

import contextlib
import dataclasses
import json
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import key_value_store, peer_failure
from kerasdist.support import launch_note, terminal

_LOOK_SECS = 1.0
_NOTE_SECS = 5.0  # After which a worker without progress notes how far it is, for the others.
_LEAST_SECS = 10.0  # Before which no step is late.
_FIRST_SECS = 120.0  # The same for the first call of a step function, which traces it.
_TIMES_LONGER = 5.0  # Than the longest of the last steps.
_SETTLE_SECS = 3.0  # Until the others have noted theirs.
_POLL_SECS = 0.2
_NUM_STEPS = 1000

BETWEEN = "between two steps, in a callback or elsewhere in its program"
DATA = "waiting for its data"
_STEP = "computing its step"


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker is.

    Attributes:
        num_calls: The calls of the step function that it has begun.
        num_batches: The batches that it has read.
        is_between: Whether it has ended the last of these calls, and not begun another.
        has_ended: Whether the data of its epoch has ended, and it waits there for the others.
        num_epochs: The epochs at whose end all workers have met.
    """

    num_calls: int
    num_batches: int
    is_between: bool
    has_ended: bool = False
    num_epochs: int = 0

    @property
    def order(self) -> tuple[int, bool, int]:
        """A key that is larger for a worker that is further."""
        return self.num_calls, self.is_between, self.num_batches


class StepWatch:
    """Watches the steps of one synchronous worker.

    Args:
        cluster: The workers, and which of them this process is.
        limit_secs: Seconds without progress after which the job ends.
        note: Puts this worker's progress, as text, where the others can read it.
        read: Returns the text of another worker, or "".
        say: Takes a line for the log.
        end: Ends this process: end(cause, is_late).
        tell: Tells the other tasks what ends the job.
        show_stacks: Writes to the log where the threads of this process are.
        clock: Seconds.

    Attributes:
        was_left: Whether an error, or an exit, has ended what it watched.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        limit_secs: float,
        note: Callable[[str], object] | None = None,
        read: Callable[[Task], str] | None = None,
        say: Callable[[str], object] = terminal.say,
        end: Callable[[str, bool], object] | None = None,
        tell: Callable[[str], object] | None = None,
        show_stacks: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cluster = cluster
        self._limit_secs = limit_secs
        self._note = note or (
            lambda text: key_value_store.replace(f"place of {cluster.task}", text)
        )
        self._read = read or (lambda task: key_value_store.read(f"place of {task}"))
        self._say = say
        self._end = end or self._end_process
        self._tell = tell or peer_failure.tell_others
        self._show_stacks = show_stacks or _print_stacks
        self._clock = clock
        self._num_active = self._num_calls = self._num_batches = self._num_epochs = 0
        self._count_batches: Callable[[], int] = int
        self._is_in_call = self._is_tracing = self._has_ended = self._has_failed = False
        self._changed_at = clock()
        self._lasted: deque[float] = deque(maxlen=_NUM_STEPS)
        self._is_noted = self._has_shown_stacks = False
        self._say_at = 0.0  # Seconds without progress; 0 before it was said.
        self._thread: threading.Thread | None = None
        self.was_left = False

    @contextlib.contextmanager
    def active(self) -> Generator[None]:
        """Watches while what is inside runs: `fit` or `evaluate`, also one inside the other."""
        self._changed_at = self._clock()
        if not self._num_active:
            self._has_ended = self._has_failed = False  # A `fit` that failed has left them.
        self._num_active += 1
        launch_note.add(launch_note.BEGUN)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look_on, name="kerasdist_step_watch", daemon=True
            )
            self._thread.start()
        try:
            yield
        except BaseException as error:
            self.was_left = True
            if self._num_active == 1:
                peer_failure.end_in_thread(error, self._cluster, self._tell)
            raise
        finally:
            launch_note.add(launch_note.ENDED)
            self._num_active -= 1
            self._changed_at = self._clock()
            self._forget_if_idle()

    @contextlib.contextmanager
    def call(self, count_batches: Callable[[], int], *, is_first: bool) -> Generator[None]:
        """Watches a call of a step function.

        Args:
            count_batches: Returns the batches that it has read so far; also called from a thread.
            is_first: Whether it is the function's first call.
        """
        self._go_on(is_step=self._num_calls > 0)
        self._count_batches = count_batches
        self._num_calls += 1
        self._is_in_call, self._is_tracing = True, is_first
        try:
            yield
        finally:
            is_step = not self._is_tracing
            self._is_in_call = self._is_tracing = False
            self._go_on(is_step=is_step)
            self._forget_if_idle()

    @contextlib.contextmanager
    def end_of_epoch(self) -> Generator[None]:
        """Watches what all workers do together when the data of their epoch has ended."""
        self._has_ended = True
        yield  # After an error it stays there, for `describe_early_end`.
        self._has_ended = False
        self._num_epochs += 1
        self._go_on(is_step=False)

    def describe_early_end(self) -> str:
        """Returns whose data has ended before that of others, after an error; "" if nobody's.

        Waits until the others have noted their progress: one that waits for this worker soon does.
        """
        self._has_failed, self._is_noted = True, False
        self._num_batches = self._count_batches()
        progress = {self._cluster.task: self._noted_progress()}
        for _ in range(round((_NOTE_SECS + _SETTLE_SECS) / _POLL_SECS)):
            progress |= self._progress_of_others()
            if len(progress) == len(self._cluster.addresses):
                break
            time.sleep(_POLL_SECS)
        return _describe_early(progress, self._cluster) if ended_early(progress) else ""

    def expect_trace(self) -> None:
        """Notes that the call that runs traces a function, which takes longer than a step."""
        self._is_tracing = True

    def describe_stuck(self) -> str:
        """Returns that no step ends, where the process ought to have ended for it; else ""."""
        secs = self._clock() - self._changed_at
        if not self._num_active or secs < self._limit_secs + 2 * _SETTLE_SECS:
            return ""
        return f"no step has ended for {secs:.0f} s: make_strategy(step_timeout_secs=...)"

    def _go_on(self, *, is_step: bool) -> None:
        now = self._clock()
        if is_step and self._num_active:
            self._lasted.append(now - self._changed_at)
        self._changed_at = now

    def _forget_if_idle(self) -> None:
        if not self._num_active:  # A `train_on_batch` is not part of `fit`.
            self._count_batches = int  # The other function would keep a model alive.

    def _look_on(self) -> None:
        while True:
            time.sleep(_LOOK_SECS)
            self.look()

    def look(self) -> None:
        """Says who is late when it is time to; ends the process after the limit."""
        if self._has_failed:  # The others are to read what it has noted.
            return
        num_batches = self._count_batches()
        if num_batches != self._num_batches:  # A call may have several steps.
            self._num_batches = num_batches
            self._changed_at = self._clock()
        secs = self._clock() - self._changed_at
        if not self._num_active or secs < _NOTE_SECS:
            self._withdraw()
            return
        own = self._noted_progress()
        if secs >= min(self._limit_secs, max(self._late_secs() + _SETTLE_SECS, self._say_at)):
            self._act({**self._progress_of_others(), self._cluster.task: own}, secs)

    def _noted_progress(self) -> Progress:
        """Returns where this worker is, after it has noted it for the others."""
        own = Progress(
            num_calls=self._num_calls,
            num_batches=self._num_batches,
            is_between=not self._is_in_call,
            has_ended=self._has_ended,
            num_epochs=self._num_epochs,
        )
        if not self._is_noted:
            self._note(json.dumps(dataclasses.asdict(own)))
            self._is_noted = True
        return own

    def _act(self, progress: Mapping[Task, Progress], secs: float) -> None:
        """Says who is late, or ends the process, after so many seconds without progress."""
        if short := ended_early(progress):
            is_short = self._cluster.task in short
            # The one whose data ended ends first, and tells the others.
            if is_short or secs >= self._late_secs() + 3 * _SETTLE_SECS:
                self._end(_describe_early(progress, self._cluster), is_short)
            return
        late, description = self._judge(progress)
        is_late = self._cluster.task in late
        # The one that is late ends first, and tells the others.
        if secs >= self._limit_secs + (0 if is_late else _SETTLE_SECS):
            if is_late:
                self._show_stacks()
            self._end(self._describe_limit(description), is_late)
        elif secs >= self._say_at:
            self._say_at = 2 * secs
            self._report(late, description, secs)

    def _describe_limit(self, description: str) -> str:
        return (
            f"no step has ended for {self._limit_secs:g} s. {description} Fix what it is waiting "
            "for, or raise the limit: make_strategy(step_timeout_secs=...)."
        )

    def _judge(self, progress: Mapping[Task, Progress]) -> tuple[set[Task], str]:
        """Returns who is late, as far as that is known, and a sentence about it."""
        return late_ones(progress), self._describe(progress)

    def _withdraw(self) -> None:
        if self._is_noted:
            self._note("")
        if self._say_at:
            self._say(f"{self._cluster.task} goes on.")
        self._is_noted, self._has_shown_stacks, self._say_at = False, False, 0.0

    def _report(self, late: set[Task], description: str, secs: float) -> None:
        is_late = self._cluster.task in late
        if is_late or self._cluster.is_chief:
            longest = f"; the longest so far took {max(self._lasted):.2g} s" if self._lasted else ""
            self._say(
                f"No step has ended for {secs:.0f} s{longest}. {description} "
                f"After {self._limit_secs:g} s the job ends: make_strategy(step_timeout_secs=...)."
            )
        if not self._has_shown_stacks and (is_late or not late):
            self._has_shown_stacks = True
            self._show_stacks()

    def _late_secs(self) -> float:
        if self._is_tracing or not self._lasted:
            return _FIRST_SECS
        return max(_LEAST_SECS, _TIMES_LONGER * max(self._lasted))

    def _progress_of_others(self) -> dict[Task, Progress]:
        progress = {}
        for task in self._cluster.addresses:
            if task != self._cluster.task and (text := self._read(task)):
                progress[task] = Progress(**json.loads(text))
        return progress

    def _describe(self, progress: Mapping[Task, Progress]) -> str:
        silent = [task for task in self._cluster.addresses if task not in progress]
        if silent:
            names = ", ".join(map(self._cluster.describe, silent))
            return f"{names} is not in its steps: its `fit` has ended, or it is halted."
        late = late_ones(progress)
        if not late:
            return f"All workers are at the same place, {_doing(self._cluster.task, progress)}."
        return " ".join(
            f"{self._cluster.describe(task)} is late: {_doing(task, progress)}."
            for task in sorted(late, key=str)
        )

    def _end_process(self, cause: str, is_late: bool) -> None:
        if is_late:
            peer_failure.end_by_itself(cause, self._cluster, self._tell)
        peer_failure.end(cause, self._cluster)


def late_ones(progress: Mapping[Task, Progress]) -> set[Task]:
    """Returns the workers that are behind others; none if all are equally far."""
    orders = [each.order for each in progress.values()]
    return {task for task, each in progress.items() if each.order == min(orders) < max(orders)}


def ended_early(progress: Mapping[Task, Progress]) -> dict[Task, Progress]:
    """Returns the workers whose epoch has ended while others read further batches of it.

    What a worker has noted may be old: it may have met the others since then.
    """
    return {
        task: each
        for task, each in progress.items()
        if each.has_ended
        and any(
            each.num_epochs == other.num_epochs and each.num_batches < other.num_batches
            for other in progress.values()
            if not other.has_ended
        )
    }


def _describe_early(progress: Mapping[Task, Progress], cluster: Cluster) -> str:
    short = ended_early(progress)
    told = " and ".join(
        f"on {cluster.describe(task)} after {each.num_batches} batches in all"
        for task, each in sorted(short.items(), key=str)
    )
    others = " and ".join(
        f"{cluster.describe(task)} has read {each.num_batches}"
        for task, each in sorted(progress.items(), key=str)
        if task not in short
    )
    return (
        f"the data of an epoch has ended {told}, and other workers have more of it: {others}. All "
        "must read the same number of batches: look at what differs between the workers, such as "
        "files, filters, and random numbers without a seed."
    )


def _doing(task: Task, progress: Mapping[Task, Progress]) -> str:
    own = progress[task]
    if own.is_between:
        return BETWEEN
    farthest = max(each.num_batches for each in progress.values())
    return DATA if own.num_batches < farthest else _STEP


def _print_stacks() -> None:
    """Prints where the program is, and threads that run Python, such as one that reads data."""
    own, main = threading.get_ident(), threading.main_thread().ident
    frames = {key: frame for key, frame in sys._current_frames().items() if key != own}
    for key in sorted(frames, key=lambda key: key != main):
        stack = "".join(traceback.format_stack(frames[key]))
        who = "The program" if key == main else "Another thread"
        terminal.say(f"{who} is here:\n{stack.rstrip()}")
