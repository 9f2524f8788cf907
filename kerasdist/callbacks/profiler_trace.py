"""Traces of some steps, for TensorBoard and for Perfetto."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from kerasdist.callbacks import trace_windows
from kerasdist.lifetime.remote_recordings import RemoteRecordings
from kerasdist.support.checks import check_choice, check_int, check_one_of, checked_folder
from kerasdist.support.remote_path import absolute
from kerasdist.support.users_line import warn
from kerasdist.trace import spans, viewer
from kerasdist.trace.recorder import Recorder
from kerasdist.training.context import deployment, peers, running_call, traits
from kerasdist.training.hooks import scope_checks
from kerasdist.training.report import log_lines, report_file
from kerasdist.training.report.update_counter import StepCounter, updates_of


class ProfilerTrace(keras.callbacks.Callback):
    """Records what every thread and device does in some steps.

    For each window of steps it writes, below `log_dir`,

    | File | Content |
    |---|---|
    | `tf_trace-<step>.json` | the trace in Chrome's format: open it at ui.perfetto.dev |
    | `plugins/profile/step-<step>/<task>.xplane.pb` | for TensorBoard with `pip install xprof` |

    In a cluster the first is in a folder named after its task, such as `worker-0`; with parameter
    servers the chief writes the traces of all tasks. `python -m kerasdist trace FILE` says where
    the time went. Steps are those of the optimizer: `at_steps=[60]` records the update after which
    it has made 60. If a call has several steps, the whole call with that step is recorded. Between
    the windows it costs next to nothing, and recorded steps do not count for `Throughput`. A window
    begins when the one before it is over, and ends with `fit`; at the end, a warning names those of
    `at_steps` that have no trace of their own.

    Args:
        log_dir: Folder of the run; a relative path counts from where the callback is made.
        at_steps: The first steps of the windows, in rising order, each at least 1.
        every_steps: A window at every multiple of this instead.
        num_steps: Steps of a window.
        tasks: "chief", or "all" tasks of a job. With parameter servers, the others do the work.

    Attributes:
        files: The traces in Chrome's format that this task has written.

    Raises:
        TypeError, ValueError: None or both of `at_steps` and `every_steps` are given; `at_steps`
            are not rising ints of at least 1, `every_steps` or `num_steps` is not an int of at
            least 1, `tasks` is neither "chief" nor "all", or `log_dir` is not the path of a folder.

    Example:
        ```python
        model.fit(dataset, callbacks=[ProfilerTrace("runs/1", at_steps=[60])])
        ```

    Source: `trace_every_n_steps` of slim.learning.train.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        *,
        at_steps: Iterable[int] | None = None,
        every_steps: int | None = None,
        num_steps: int = 1,
        tasks: str = "chief",
    ):
        super().__init__()
        check_one_of(at_steps=at_steps, every_steps=every_steps)
        if every_steps is not None:
            check_int("every_steps", every_steps, at_least=1)
        check_int("num_steps", num_steps, at_least=1)
        check_choice("tasks", tasks, ("chief", "all"))
        self.log_dir = absolute(checked_folder("log_dir", log_dir))
        self.every_steps, self.num_steps, self.tasks = every_steps, num_steps, tasks
        self.at_steps = None if at_steps is None else trace_windows.checked(at_steps)
        self._windows = trace_windows.Windows(at_steps=self.at_steps, every_steps=every_steps)
        self.files: list[str] = []
        self._recorder = Recorder()
        self._remote: RemoteRecordings | None = None
        self._mark: Any = None

    def set_model(self, model: keras.Model):
        super().set_model(model)
        scope_checks.check_has_strategy(model, type(self).__name__)

    def on_train_begin(self, logs: dict[str, Any] | None = None):
        strategy = self.model.distribute_strategy
        self._remote = None
        if self.tasks == "all" and traits.has_remote_variables(strategy):
            self._remote = RemoteRecordings(deployment.of(strategy).cluster)
        self._is_on = self.tasks == "all" or peers.is_chief(strategy)
        self._steps = StepCounter(self.model)
        num_updates = updates_of(self.model)
        training = running_call.training_of(self.model)
        # A Checkpoint begins before all other callbacks.
        self._windows.begin_fit(num_updates, is_resumed=bool(training and training.is_resumed))
        self._plan(num_updates)
        running_call.at_end(self.model, self._stop)  # Also after an error.

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None):
        if self._left <= 0 and not self._recorder.is_running and self._is_on:
            num_updates = updates_of(self.model)
            self._left = self._first - num_updates - self.model.steps_per_execution
            if self._left <= 0:
                self._start()
        if self._recorder.is_running:  # TensorBoard counts such marks as steps.
            self._mark = tf.profiler.experimental.Trace("train", step_num=batch, _r=1)
            self._mark.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None):
        self._end_mark()
        self._left -= self._steps.advance(batch)
        if self._recorder.is_running:
            num_updates = updates_of(self.model)
            if num_updates >= self._last:
                self._windows.note(self._first, num_updates)
                self._stop()
                self._plan(num_updates)

    def on_train_end(self, logs: dict[str, Any] | None = None):
        if not self._is_on:
            return
        num_updates = updates_of(self.model)
        if self._recorder.is_running:
            self._windows.note(self._first, num_updates)
            log_lines.say(
                self.model.distribute_strategy,
                f"The trace of step {self._first} ends at step {num_updates}, with `fit`, and not "
                f"at step {self._last}.",
            )
        if left_out := self._windows.left_out(num_updates):
            warn(
                f"ProfilerTrace has written no trace of its own for these of `at_steps`: "
                f"{left_out}."
            )

    @property
    def _last(self) -> int:
        return self._first + self.num_steps - 1

    def _plan(self, num_updates: int):
        """Chooses the next window, after so many updates."""
        self._first = self._windows.next_after(num_updates)
        self._left = self._first - num_updates - self.model.steps_per_execution

    def _start(self):
        try:
            self._recorder.start()
        except tf.errors.OpError as error:
            warn(
                f"Step {self._first} is not traced because another trace is running in this "
                "process (of another ProfilerTrace, or TensorBoard(profile_batch=...)): "
                f"{error.message.rstrip('.')}."
            )
            self._windows.note_explained(self._first)
            self._plan(self._first)
            return
        if self._remote:
            self._warn_of(self._remote.start())
        running_call.set_recorded(self.model, True)

    def _stop(self):
        if not self._recorder.is_running:
            return
        running_call.set_recorded(self.model, False)
        self._end_mark()
        try:
            recorded = {peers.task_of(self.model.distribute_strategy): self._recorder.stop()}
            if self._remote:
                of_others, problems = self._remote.stop()
                self._warn_of(problems)
                recorded |= {str(task): profile for task, profile in of_others.items()}
            for task, profile in recorded.items():
                self._write(task, profile)
        except (OSError, tf.errors.OpError) as error:
            warn(
                f"The trace of step {self._first} cannot be written to {self.log_dir!r}: {error}. "
                "Training goes on."
            )

    def _end_mark(self):
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _warn_of(self, problems: Mapping):
        for task, problem in problems.items():
            warn(
                f"There is no trace of {task}: {problem}. No further traces of it are requested "
                "during this `fit`."
            )

    def _write(self, task: str | None, profile: bytes):
        name = task.replace(" ", "-") if task else "host"
        folder = os.path.join(self.log_dir, name) if task else self.log_dir
        path = os.path.join(folder, f"tf_trace-{self._first}.json")
        xplane = f"plugins/profile/step-{self._first:08d}/{name}.xplane.pb"
        found = spans.as_chrome(list(spans.of_profile(profile)))
        report_file.write(os.path.join(self.log_dir, xplane), profile)
        report_file.write(path, json.dumps(found).encode())
        if not self.files:
            strategy = self.model.distribute_strategy
            log_lines.say(strategy, f"The trace of step {self._first}: {viewer.ways_to_look(path)}")
        self.files.append(path)
