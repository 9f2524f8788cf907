"""Traces of the tasks that serve the chief, recorded when it asks for them.

TensorFlow's profiler records its own process, and with parameter servers the program runs only on
the chief. So every task that serves waits for requests at one queue, and answers at another. While
nobody asks, it costs a sleeping thread; no port is opened for it, and no folder is shared.

    remote = RemoteRecordings(cluster)                  # On the chief.
    problems = remote.start()
    recorded, problems = remote.stop()
    answer_requests(server.target, cluster.task)        # On the others, in a thread.
"""

import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime.tensorflow_cluster import queues, session
from kerasdist.messages.tensorflow_server import find_problem
from kerasdist.trace.recorder import Recorder

# A recording is some megabytes, and is serialized first.
_START_SECS = 5.0
_STOP_SECS = 60.0
_REQUESTS, _ANSWERS = "kerasdist_trace_requests", "kerasdist_trace_answers"
_OK, _FAILED = b"ok", b"failed"


class RemoteRecordings:
    """Records what every other task of a cluster does.

    A task that does not answer is not asked again.

    Args:
        cluster: Its workers and ps tasks serve; this process is its chief.
    """

    def __init__(self, cluster: Cluster):
        self._addresses = {
            task: address for task, address in cluster.addresses.items() if task != cluster.task
        }
        self._numbers = itertools.count()

    def start(self) -> dict[Task, str]:
        """Begins to record; returns what went wrong, by the task."""
        return self._ask_all("start", timeout_secs=_START_SECS)[1]

    def stop(self) -> tuple[dict[Task, bytes], dict[Task, str]]:
        """Ends the recordings; returns them and what went wrong, by the task."""
        return self._ask_all("stop", timeout_secs=_STOP_SECS)

    def _ask_all(
        self, verb: str, *, timeout_secs: float
    ) -> tuple[dict[Task, bytes], dict[Task, str]]:
        answers, problems = {}, {}
        number = next(self._numbers)
        with ThreadPoolExecutor(max_workers=max(1, len(self._addresses))) as pool:
            asked = {
                task: pool.submit(_ask, address, task, verb, number, timeout_secs)
                for task, address in self._addresses.items()
            }
        for task, future in asked.items():
            try:
                answers[task] = future.result()
            except (tf.errors.OpError, RuntimeError) as error:
                problems[task] = str(error).partition("\n")[0]
                del self._addresses[task]
        return answers, problems


def _ask(address: str, task: Task, verb: str, number: int, timeout_secs: float) -> bytes:
    if problem := find_problem(address):
        raise RuntimeError(problem)
    graph, [requests, answers] = queues(_REQUESTS, _ANSWERS)
    with graph.as_default():
        enqueue, dequeue = requests.enqueue([f"{verb} {number}"]), answers.dequeue()
    with session(f"grpc://{address}", task, graph, timeout_secs=timeout_secs) as connected:
        connected.run(enqueue)
        while True:
            answered, result, payload = connected.run(dequeue).split(b"\n", 2)
            if int(answered) == number:  # Otherwise it answers a request that was given up.
                break
    if result != _OK:
        raise RuntimeError(payload.decode())
    return payload


def answer_requests(target: str, task: Task) -> None:
    """Records when the chief asks for it, until the server ends.

    Args:
        target: The server of this task.
        task: This task.
    """
    recorder = Recorder()
    graph, [requests, answers] = queues(_REQUESTS, _ANSWERS)
    with graph.as_default():
        dequeue, answer = requests.dequeue(), tf.compat.v1.placeholder(tf.string, ())
        enqueue = answers.enqueue([answer])
    with session(target, task, graph) as connected, contextlib.suppress(tf.errors.OpError):
        while True:
            verb, number = connected.run(dequeue).decode().split()
            result, payload = _obey(recorder, verb)
            connected.run(enqueue, {answer: b"\n".join([number.encode(), result, payload])})


def _obey(recorder: Recorder, verb: str) -> tuple[bytes, bytes]:
    verbs: dict[str, Callable] = {"start": lambda: _start_anew(recorder), "stop": recorder.stop}
    try:
        return _OK, verbs[verb]() or b""
    except Exception as error:  # The chief says it; a task that serves must go on.  # noqa: BLE001
        return _FAILED, f"{type(error).__name__}: {error}".encode()


def _start_anew(recorder: Recorder) -> None:
    recorder.cancel()  # A chief that is gone may have begun one.
    recorder.start()
