"""Parameter servers: the variables live on ps tasks, and workers train them without waiting."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.cluster import Cluster
from kerasdist.cluster_resolver import make_resolver
from kerasdist.lifetime import process_end
from kerasdist.lifetime.chief_watch import ChiefWatch
from kerasdist.lifetime.worker_watch import WorkerWatch
from kerasdist.private import coordinator_adapter, tensorflow_adapter
from kerasdist.strategies import random_state
from kerasdist.training import routes
from kerasdist.training.parameter_servers import sharded_variables
from kerasdist.training.parameter_servers.data_waits import DataWaits


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """TensorFlow's ParameterServerStrategy, in whose scope stock `fit` trains asynchronously.

    The chief makes it and runs the program; workers and ps tasks serve (see `serve`).

    Args:
        cluster: The chief, workers and ps tasks; this process is the chief.
        start_timeout_secs: How long to wait if no worker is left.
        heartbeat_timeout_secs: How long a task may be silent before it counts as lost.
        step_timeout_secs: How long `fit` and `evaluate` may be without progress; then the job ends.
        reason: Why it was chosen, for the plan.
        steps_per_call: Steps that a worker runs at once; None chooses while it trains.
        variable_partitioner: Divides weights into parts; see `make_strategy`.
        tell: Is called with what ends the job, to tell the other tasks.

    Example:
        strategy = ParameterServerStrategy(
            Cluster.from_env(),
            start_timeout_secs=300,
            heartbeat_timeout_secs=10,
            step_timeout_secs=3600,
        )
        with strategy.scope():
            model = make_model()
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        start_timeout_secs: float,
        heartbeat_timeout_secs: float,
        step_timeout_secs: float,
        reason: str = "",
        steps_per_call: int | None = None,
        variable_partitioner: Any = None,
        tell: Callable[[str], object] = lambda cause: None,
    ):
        partitioner: Any = variable_partitioner and sharded_variables.checked(variable_partitioner)
        super().__init__(make_resolver(cluster), partitioner)
        self.served_cluster = cluster
        self.steps_per_call = steps_per_call
        # As on the workers, which run the same program up to here.
        self.is_deterministic = tensorflow_adapter.is_deterministic()
        self.reason = reason
        self.coordinator = _Coordinator(self)
        coordinator_adapter.copy_results_first(self.coordinator)
        coordinator_adapter.let_control_flow_ask_at_call_time()
        process_end.at_end(coordinator_adapter.stop, self.coordinator)
        self.watch = WorkerWatch(
            cluster,
            self.coordinator,
            silent_secs=heartbeat_timeout_secs,
            no_worker_secs=start_timeout_secs,
        )
        self.data_waits = DataWaits()
        self.step_watch = ChiefWatch(
            cluster,
            awaited=lambda: self.watch.awaited,
            waits_for_data=self.data_waits.is_waiting,
            tell=tell,
            limit_secs=step_timeout_secs,
        )
        routes.adapt(self)
        random_state.seed_tensorflow()


class _Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """TensorFlow's coordinator, which lets the process end even if a worker is lost."""

    def __del__(self):
        # TensorFlow's waits for every lost worker to come back. What it stops ends anyway.
        pass
