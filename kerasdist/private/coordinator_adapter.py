"""TensorFlow's cluster coordinator: results, lost workers, and calls that run once.

It sends the chief's functions to the workers of parameter servers.

tests/private/test_coordinator_adapter.py fails when one of these names moves, tests/cluster when
one does something else. Written against TensorFlow 2.20 and 2.21.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.distribute.coordinator import values as coordinator_values
from tensorflow.python.eager import context, executor
from tensorflow.python.framework import func_graph
from tensorflow.python.training import server_lib

from kerasdist.private import dataset_adapter, names, variable_adapter

ClusterCoordinator = cluster_coordinator.ClusterCoordinator
# How the names of the coordinator's threads begin, one for each worker.
COORDINATOR_THREADS = "WorkerClosureProcessingLoop"
# A call fails with these if its data could not be made on its worker, or another one ended it.
INPUT_ERRORS = (cluster_coordinator.ClosureInputError, cluster_coordinator.ClosureAbortedError)
# How TensorFlow's coordinator begins what it logs of lost workers.
LOST_WORKER_MESSAGES = (
    "Worker %s failed with",
    "Remote function on worker",
    "Cluster update failed with error",
    " /job:worker/task:%d encountered the following error",
    "Start cancelling closures due to error",
)

# gRPC's server says so of a request that it cannot read.
GARBLED_REQUEST = "Unable to parse request"


def copy_results_first(
    coordinator: ClusterCoordinator, *, make_way: Callable[[], object] = lambda: None
) -> None:
    """Lets a coordinator announce a result when the chief has it.

    TensorFlow announces it before it has copied it from the worker: to fetch it from one that has
    halted meanwhile would block the caller for ever.

    Args:
        coordinator: TensorFlow's.
        make_way: Called before anything is scheduled; lets workers be free for it.
    """
    cluster = coordinator._cluster
    chief = f"/job:{context.get_server_def().job_name}/replica:0/task:0/device:CPU:0"

    def schedule(function: Callable, args: tuple, kwargs: dict, attempt: Attempt | None = None):
        make_way()
        queue = cluster.closure_queue
        manager = queue._cancellation_mgr
        if attempt is None:
            closure = cluster_coordinator.Closure(function, manager, args, kwargs)
        else:
            closure = _ClosureRunOnce(attempt, function, manager, args, kwargs)
        run = closure._function

        def run_and_copy(*args: Any, **kwargs: Any):
            with _garbled_requests_are_losses():
                outputs = run(*args, **kwargs)
                with tf.device(chief):
                    return tf.nest.map_structure(_copy, outputs)

        closure._function = run_and_copy
        result = closure.build_output_remote_value()
        queue.put(closure)
        return result

    cluster.schedule = schedule


@contextlib.contextmanager
def _garbled_requests_are_losses() -> Generator[None]:
    """Makes a call that reached a worker damaged one whose worker is lost.

    gRPC's server answers INTERNAL then, which happens while tasks go and come, and which TensorFlow
    takes for an error of the program.
    """
    try:
        yield
    except tf.errors.InternalError as error:
        if GARBLED_REQUEST not in str(error) or "/job:worker" not in str(error):
            raise
        raise tf.errors.UnavailableError(error.node_def, error.op, str(error)) from error


@contextlib.contextmanager
def servers_see_each_other() -> Generator[None]:
    """Lets a function that runs on one parameter server use variables of the others.

    TensorFlow's strategy, made inside, hides them from each other, since it runs nothing there.
    """
    filters = server_lib.ClusterDeviceFilters
    original = names.find(filters, "set_device_filters")

    def set_filters(self: Any, job: str, task: int, seen: list[str]) -> None:
        original(self, job, task, [*seen, "/job:ps"] if job == "ps" else seen)

    names.overwrite(filters, "set_device_filters", set_filters)
    try:
        yield
    finally:
        names.overwrite(filters, "set_device_filters", original)


@contextlib.contextmanager
def apart_from_others() -> Generator[None]:
    """Lets what this thread runs on other tasks hold up nothing else that they are to do.

    A task does one after the other of what comes by the same way, new functions included.
    """
    with context.executor_scope(executor.new_executor(enable_async=False)):
        yield


class Attempt:
    """Something that is to run on a worker once at most, and what has become of it.

    A subclass says what happens around it, on the thread of the worker.

    Attributes:
        refusal: Part of the error of a worker that was given up and is back.
        worker: Index of the worker that it was begun on, or None.
        is_lost: Whether that worker was lost meanwhile, or is given up. There is no result then.
    """

    refusal: str

    def __init__(self):
        self.worker: int | None = None
        self.is_lost = False
        self._has_succeeded = False
        self._lock = threading.Lock()

    def begin(self, worker: int) -> None:
        """Prepares a worker, which is the device; its error says that nothing has begun."""
        raise NotImplementedError

    def succeed(self) -> None:
        """Hears that the worker has done it, and that nobody had given it up."""
        raise NotImplementedError

    def give_up(self) -> bool:
        """Lets it be lost where it has not succeeded; returns whether it is."""
        with self._lock:
            self.is_lost = not self._has_succeeded
            return self.is_lost

    def end(self) -> None:
        """Notes that the worker has done it, maybe too late."""
        with self._lock:
            self._has_succeeded = not self.is_lost
            if self._has_succeeded:
                self.succeed()


class _ClosureRunOnce(cluster_coordinator.Closure):
    """TensorFlow runs what a lost worker had begun again on another one; this one ends instead."""

    def __init__(self, attempt: Attempt, *args: Any):
        super().__init__(*args)
        self._attempt = attempt
        run = self._function

        def run_once(*args: Any, **kwargs: Any):
            assert attempt.worker is not None
            attempt.begin(attempt.worker)
            self._has_begun = True
            return run(*args, **kwargs)

        self._has_begun = False
        self._function = run_once

    def execute_on(self, worker: Any):
        if not self._has_begun:
            self._attempt.worker = worker.worker_index
            try:
                super().execute_on(worker)
                self._attempt.end()
                return
            except tf.errors.OpError as error:
                is_refused = self._attempt.refusal in str(error)
                if is_refused or isinstance(error, tf.errors.CancelledError):
                    # The worker was silent and is back, or has stopped somewhere in the call. Where
                    # it is in its data nobody knows: the iterators are made anew, before anything
                    # else runs.
                    worker._on_worker_recovery()
                if not is_refused:
                    raise
        self._attempt.is_lost = True
        self.maybe_call_with_output_remote_value(lambda result: result._set_values(None))


def _copy(output: Any):
    return tf.identity(output) if tf.is_tensor(output) else output


def before_each_new_function(act: Callable[[], object]) -> None:
    """Calls `act` before TensorFlow tells all tasks of a cluster of a new function.

    It then waits for their answers and holds Python's lock, so that no thread of this process runs
    while one of them is halted.
    """
    eager = context.context()
    add = names.find(type(eager), "add_c_function")

    def act_and_add(function: Callable):
        act()
        add(eager, function)

    names.replace(eager, "add_c_function", act_and_add)


def before_each_seed(act: Callable[[], object]) -> None:
    """Calls `act` before TensorFlow sets the seed of a program.

    It then waits for all that runs on other tasks, which may wait for this program.
    """
    eager = context.context()
    set_seed = names.find(type(eager), "_set_global_seed")

    def act_and_set(seed: Any):
        act()
        set_seed(eager, seed)

    names.replace(eager, "_set_global_seed", act_and_set)


def let_control_flow_ask_at_call_time() -> None:
    """Lets a step have what each worker has of its own within `tf.cond` and `tf.while_loop`.

    That is the table of a StringLookup or TextVectorization layer, and the index of the worker.
    TensorFlow asks for it where a function is called, and control flow is no function that anybody
    calls: it raises "You must feed a value for placeholder tensor". So the function around asks.
    """
    graph_class = func_graph.FuncGraph
    original = names.find(graph_class, "capture_call_time_value")

    def capture(graph: Any, closure: Callable, spec: Any, *args: Any, **kwargs: Any):
        while graph.is_control_flow_graph:
            graph = graph.outer_graph
        with graph.as_default():
            return original(graph, closure, spec, *args, **kwargs)

    names.replace(graph_class, "capture_call_time_value", capture)


def concrete_function(coordinator: ClusterCoordinator, function: Callable, args: tuple):
    """Returns a function traced for arguments of `schedule`, which spares the chief a search."""
    queue = coordinator._cluster.closure_queue
    with coordinator.strategy.scope(), traced_for_workers(coordinator.strategy):
        closure = cluster_coordinator.Closure(function, queue._cancellation_mgr, args=args)
    return closure._concrete_function


@contextlib.contextmanager
def traced_for_workers(strategy: tf.distribute.Strategy) -> Generator[None]:
    """Tells a ParameterServerStrategy, which warns otherwise, that workers will run the trace."""
    names.overwrite(strategy.extended, "_being_scheduled", True)
    try:
        yield
    finally:
        names.overwrite(strategy.extended, "_being_scheduled", False)


def schedule_once(
    coordinator: ClusterCoordinator, function: Callable, args: tuple, attempt: Attempt
):
    """Schedules a function of which no worker runs again what another one has begun.

    Args:
        coordinator: A ClusterCoordinator with `copy_results_first`.
        function: A `tf.function`; or one that is traced already, without what only tracing needs.
        args: Its arguments.
        attempt: Hears what becomes of it.

    Returns:
        What the coordinator promises.
    """
    cluster: Any = coordinator._cluster  # Its `schedule` is that of `copy_results_first`.
    if isinstance(function, tf.types.experimental.PolymorphicFunction) and not hasattr(
        function, "structured_outputs"
    ):
        with coordinator.strategy.scope(), traced_for_workers(coordinator.strategy):
            return cluster.schedule(function, args, {}, attempt)
    return cluster.schedule(function, args, {}, attempt)


def cause_of(error: Exception) -> Exception:
    """Returns what one of the `INPUT_ERRORS` comes from; any other error as it is."""
    return error.original_exception if isinstance(error, INPUT_ERRORS) else error


def wait_for(result: Any, secs: float) -> bool:
    """Waits until what was scheduled has ended, at most so long; returns whether it has."""
    return result._status_available_event.wait(secs)


def report_lost_workers(
    coordinator: ClusterCoordinator, *, on_lost: Callable, on_back: Callable
) -> None:
    """Calls functions of a worker's index where TensorFlow logs pages of its transport's errors.

    `hide_lost_workers` keeps those out of the log.

    Args:
        coordinator: A ClusterCoordinator.
        on_lost: Called once when a worker is lost.
        on_back: Called when it is there again.
    """
    for worker in coordinator._cluster.workers:
        _report_lost_worker(worker, on_lost, on_back)


def hide_lost_workers() -> None:
    """Keeps what TensorFlow logs of lost workers out of its log: see `report_lost_workers`."""
    names.filter_log(lambda record: not str(record.msg).startswith(LOST_WORKER_MESSAGES))


def _report_lost_worker(
    worker: Any, on_lost: Callable[[int], object], on_back: Callable[[int], object]
):
    is_lost = threading.Event()

    def after(original: Callable, report: Callable[[int], object], *, if_lost: bool):
        def method(*args: Any):
            if is_lost.is_set() == if_lost:
                (is_lost.clear if if_lost else is_lost.set)()
                report(worker.worker_index)
            return original(*args)

        return method

    for name in ("_on_closure_failure", "_on_resource_closure_failure"):
        setattr(worker, name, after(getattr(worker, name), on_lost, if_lost=False))
    worker._on_worker_recovery = after(worker._on_worker_recovery, on_back, if_lost=True)


def stop(coordinator: ClusterCoordinator) -> None:
    """Ends the threads of a coordinator before Python does: one that still runs aborts the process.

    Not TensorFlow's own way, which waits for every lost worker to come back.

    Args:
        coordinator: A ClusterCoordinator.
    """
    cluster = coordinator._cluster
    for worker in cluster.workers:
        worker.stop()
    cluster.closure_queue.stop()
    deadline = time.monotonic() + 5.0  # One that runs something on a worker may be halted with it.
    # The thread of a lost worker waits in Python for it to come back, which does no harm.
    running = {
        f"{COORDINATOR_THREADS}-{worker.worker_index}"
        for worker in cluster.workers
        if not worker._is_dead_with_error
    }
    for thread in threading.enumerate():
        if thread.name in running:
            thread.join(max(0.0, deadline - time.monotonic()))


def datasets_of_workers(coordinator: ClusterCoordinator, makers: list[Callable]):
    """Returns a dataset on each worker, for `iterators_of_workers`.

    TensorFlow's `create_per_worker_dataset` makes the same dataset on all of them. A worker that is
    started again gets its own anew.

    Args:
        coordinator: A ClusterCoordinator.
        makers: For each worker a function that returns its dataset.
    """
    functions = {id(make): tf.function(make).get_concrete_function() for make in makers}
    datasets = []
    for worker, make in zip(coordinator._cluster.workers, makers, strict=True):
        function = functions[id(make)]
        dataset = worker.create_resource(functools.partial(_call, function))
        dataset._type_spec = input_lib.get_iterator_spec_from_dataset(
            coordinator.strategy, function.structured_outputs
        )
        datasets.append(dataset)
    return coordinator_values.PerWorkerValues(tuple(datasets))


def _call(function: Callable):
    return function()


def iterators_of_workers(
    coordinator: ClusterCoordinator,
    datasets: Any,
    state: tf.Tensor | None,
    *,
    progress: str,
    generation: int,
    num_skipped: int = 0,
):
    """Returns an iterator on each worker, as one value to be passed to what is scheduled.

    Args:
        coordinator: A ClusterCoordinator.
        datasets: Of `datasets_of_workers`.
        state: Of `dataset_adapter.position_state`; of an iterator over the same dataset.
        progress: The name of two numbers of each worker: whose iterator it has read last, and how
            far. A new iterator stands at 0, also on a worker that has lost nothing else.
        generation: Whose iterators these are.
        num_skipped: Elements that each worker reads past at once.
    """

    def make(dataset: tf.data.Dataset):
        with tf.device("/device:CPU:0"):  # The steps look for it there, also on GPUs.
            last, position = tf.unstack(variable_adapter.worker_numbers(progress, 2))
            position = tf.where(tf.equal(last, generation), tf.zeros_like(position), position)
            variable_adapter.note_worker_numbers(progress, tf.stack([last, position]))
        iterator = dataset_adapter.iterator_over(dataset, state)

        def read_past(count: Any) -> Any:
            next(iterator)
            return [count + 1]

        if num_skipped:
            start = [tf.constant(0, tf.int64)]
            tf.while_loop(
                lambda count: count < num_skipped, read_past, start, parallel_iterations=1
            )
        return iterator

    iterators = []
    for worker, dataset in zip(coordinator._cluster.workers, datasets._values, strict=True):
        iterator = worker.create_resource(make, args=(datasets,))
        iterator._type_spec = dataset._type_spec
        iterators.append(iterator)
    return coordinator_values.PerWorkerDistributedIterator(tuple(iterators))
