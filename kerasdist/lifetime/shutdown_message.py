"""The shutdown message of a chief with parameter servers, by which the other tasks end.

TensorFlow's servers serve for ever. So every task that serves has a queue, and waits for what the
chief puts there at its end: nothing if all is done, or what went wrong.

    ShutdownMessage(cluster)                            # On the chief, which then trains.
    cause = receive(server.target, cluster.task)        # On the others. "" if the job is done.
"""

import contextlib
import threading
import time
from collections.abc import Callable

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import process_end
from kerasdist.lifetime.tensorflow_cluster import queues, session
from kerasdist.messages.tensorflow_server import find_problem

# A task that is halted or cut off must not delay the end of the chief.
_TELL_SECS = 3.0
_WAIT_SECS = 5.0
_QUEUE = "kerasdist_last_word"


class ShutdownMessage:
    """Tells every task that serves, once, how the job ended; at the latest when this process ends.

    Args:
        cluster: Its workers and ps tasks are told.
        clock: Seconds.

    Example:
        message = ShutdownMessage(cluster)
        message.tell("chief 0 (a:2222) failed: ValueError: no data")
    """

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._cause = ""
        self._is_sent = threading.Event()
        # Started now: a process that is ending cannot start a thread.
        self._threads = [
            threading.Thread(target=self._tell_in_time, args=(task, address), daemon=True)
            for task, address in cluster.addresses.items()
            if task != cluster.task
        ]
        for thread in self._threads:
            thread.start()
        process_end.at_end(self.tell)

    def tell(self, cause: str = "") -> None:
        """Tells what ended the job, and returns when all have heard it or some seconds have passed.

        Args:
            cause: What failed, in a sentence; "" if the job is done. Only the first one counts.
        """
        if not self._is_sent.is_set():
            self._cause = cause
            self._is_sent.set()
        deadline = self._clock() + _WAIT_SECS
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _tell_in_time(self, task: Task, address: str) -> None:
        self._is_sent.wait()
        if find_problem(address):  # It is gone, and must not be waited for.
            return
        with contextlib.suppress(tf.errors.OpError):  # It has ended meanwhile.
            _tell(f"grpc://{address}", task, self._cause)


def _tell(target: str, task: Task, cause: str) -> None:
    graph, [queue] = queues(_QUEUE)
    with graph.as_default():
        enqueue = queue.enqueue([cause])
    with session(target, task, graph, timeout_secs=_TELL_SECS) as connected:
        connected.run(enqueue)


def receive(target: str, task: Task) -> str:
    """Waits for what the chief says at its end.

    Args:
        target: The server of this task.
        task: This task.

    Returns:
        What failed, in a sentence; "" if the job is done.
    """
    graph, [queue] = queues(_QUEUE)
    with graph.as_default():
        dequeue = queue.dequeue()
    with session(target, task, graph) as connected:
        return connected.run(dequeue).decode()
