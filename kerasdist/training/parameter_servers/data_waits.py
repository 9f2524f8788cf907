"""Whether a worker waits for its data: it notes so itself, and the chief asks where it is late."""

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from kerasdist.cluster import Task
from kerasdist.private import worker_variables
from kerasdist.training.parameter_servers.worker_names import unique_name
from kerasdist.training.step import step_times

# A worker that is halted never answers.
_ANSWER_SECS = 2.0
_BEGUN, _ENDED = [1, 0], [0, 1]


class DataWaits:
    """How many batches each worker has begun to read in its call, and how many it has."""

    def __init__(self):
        self._name = unique_name()
        self._counts: Any = None  # While a call is traced.

    def is_waiting(self, worker: Task) -> bool | None:
        """Returns whether a worker waits for a batch; None where it does not answer."""
        answers = []

        def ask():
            device = f"/job:worker/task:{worker.index}/device:CPU:0"
            with contextlib.suppress(tf.errors.OpError), tf.device(device):
                begun, ended = worker_variables.numbers(self._name, 2).numpy()
                answers.append(bool(begun > ended))

        thread = threading.Thread(target=ask, name="kerasdist_data_waits", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECS)
        return answers[0] if answers else None

    # What follows is traced by the chief and runs on a worker.

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Traces a call in which `of_input` reads."""
        with tf.device("/device:CPU:0"):
            self._counts = worker_variables.variable(tf.TensorSpec([2], tf.int64), self._name)
            reset = self._counts.assign(tf.zeros([2], tf.int64))
        try:
            with tf.control_dependencies([reset]):
                yield
        finally:
            self._counts = None

    def of_input(self, read: Callable):
        """Returns what `read()` gives, a batch."""
        with tf.control_dependencies([self._note(_BEGUN)]):
            batch = read()
        with tf.control_dependencies(step_times.tensors_in(batch)):
            self._note(_ENDED)
        return batch

    def _note(self, counts):
        with tf.device("/device:CPU:0"):
            return self._counts.assign_add(tf.constant(counts, tf.int64))
