"""Parameter servers: the variables live on ps tasks, and workers train them without waiting."""

import contextlib
from collections.abc import Callable

import tensorflow as tf

from kerasdist.cluster import Cluster
from kerasdist.lifetime import process_end
from kerasdist.lifetime.chief_watch import ChiefWatch
from kerasdist.lifetime.tensorflow_cluster import make_resolver
from kerasdist.lifetime.worker_watch import WorkerWatch
from kerasdist.private import coordinator_adapter, runtime
from kerasdist.strategies import random_state
from kerasdist.strategies.cluster_options import ClusterOptions
from kerasdist.training import routes
from kerasdist.training.context.deployment import Deployment, RemoteWorkers
from kerasdist.training.context.occupation import Occupation
from kerasdist.training.parameter_servers import sharded_variables
from kerasdist.training.parameter_servers.worker_times import DataWaits


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """TensorFlow's ParameterServerStrategy, in whose scope stock `fit` trains.

    The chief makes it and runs the program; workers and ps tasks serve (see `serve`).

    Args:
        cluster: The chief, workers and ps tasks; this process is the chief.
        options: As `make_strategy` makes them. The time to start also limits the wait where no
            worker is left.
        num_to_aggregate: Batches of each update of synchronous workers; None for asynchronous ones.
        reason: Why it was chosen, for the plan.
        tell: Is called with what ends the job, to tell the other tasks.

    Example:
        strategy = kerasdist.make_strategy()  # In the chief of a cluster with ps tasks.
        with strategy.scope():
            model = make_model()
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ClusterOptions,
        *,
        num_to_aggregate: int | None = None,
        reason: str = "",
        tell: Callable[[str], object] = lambda cause: None,
    ):
        divide = options.variable_partitioner
        is_async = num_to_aggregate is None
        # Synchronous updates run on a server.
        seen = coordinator_adapter.servers_see_each_other()
        with contextlib.nullcontext() if is_async else seen:
            super().__init__(make_resolver(cluster), divide and sharded_variables.checked(divide))
        remote = _remote_workers(self, cluster, options, num_to_aggregate)
        step_watch = ChiefWatch(
            cluster,
            awaited=lambda: remote.watch.awaited,
            waits_for_data=remote.data_waits.is_waiting,
            are_synchronous=not is_async,
            tell=tell,
            limit_secs=options.step_timeout_secs,
        )
        self.deployment = Deployment(
            cluster=cluster,
            reason=reason,
            has_remote_variables=True,
            is_async=is_async,
            step_watch=step_watch,
            remote=remote,
        )
        routes.adapt(self)
        random_state.seed_tensorflow()


def _remote_workers(
    strategy: tf.distribute.ParameterServerStrategy,
    cluster: Cluster,
    options: ClusterOptions,
    num_to_aggregate: int | None,
) -> RemoteWorkers:
    coordinator = _Coordinator(strategy)
    occupation = Occupation()
    coordinator_adapter.copy_results_first(coordinator, make_way=occupation.make_way)
    process_end.at_end(coordinator_adapter.stop, coordinator)
    return RemoteWorkers(
        coordinator=coordinator,
        watch=WorkerWatch(
            cluster,
            coordinator,
            silent_secs=options.heartbeat_timeout_secs,
            no_worker_secs=options.start_timeout_secs,
        ),
        data_waits=DataWaits(),
        occupation=occupation,
        steps_per_call=options.steps_per_call,
        num_to_aggregate=num_to_aggregate,
        # As on the workers, which run the same program up to here.
        is_deterministic=runtime.is_deterministic(),
    )


class _Coordinator(tf.distribute.coordinator.ClusterCoordinator):
    """TensorFlow's coordinator, which lets the process end even if a worker is lost."""

    def __del__(self):
        # TensorFlow's waits for every lost worker to come back. What it stops ends anyway.
        pass
