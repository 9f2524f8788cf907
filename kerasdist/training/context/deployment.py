"""The deployment of a strategy: its tasks and how they work together, as one frozen description.

Each strategy of ours has one, set by its constructor:

    deployment.of(strategy).cluster.num_workers
"""

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from kerasdist.cluster import Cluster
from kerasdist.training.context.occupation import Occupation

if TYPE_CHECKING:
    from kerasdist.lifetime.step_watch import StepWatch
    from kerasdist.lifetime.worker_watch import WorkerWatch
    from kerasdist.training.parameter_servers.worker_times import DataWaits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RemoteWorkers:
    """The workers beside parameter servers, as their chief sees them.

    Attributes:
        coordinator: What schedules functions on them.
        watch: Which of them are lost.
        data_waits: How long they wait for the data of the program.
        occupation: Who has all of them compute for it.
        steps_per_call: Steps that a worker runs in one call, where the user has chosen.
        num_to_aggregate: Batches of each update of synchronous workers; None for asynchronous ones.
        is_deterministic: Whether TensorFlow computes the same each time, here and on the workers.
    """

    coordinator: tf.distribute.coordinator.ClusterCoordinator
    watch: "WorkerWatch"
    data_waits: "DataWaits"
    occupation: Occupation = dataclasses.field(default_factory=Occupation)
    steps_per_call: int | None = None
    num_to_aggregate: int | None = None
    is_deterministic: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What a strategy spans. The defaults are those of one process.

    Attributes:
        cluster: All tasks, and which of them this process is.
        reason: Why the strategy was chosen, for the plan.
        has_remote_variables: Whether variables live on parameter servers, and not where the steps
            are computed.
        is_async: Whether each worker makes steps of its own, and waits for no other.
        step_watch: Says which task is late; None in one process.
        messages: How several workers add up; None elsewhere.
        allreduce_dtype: As which dtype they send gradients, "float16" or "bfloat16"; None for their
            own.
        remote: The workers beside parameter servers; None elsewhere.
    """

    cluster: Cluster = dataclasses.field(default_factory=Cluster.local)
    reason: str = ""
    has_remote_variables: bool = False
    is_async: bool = False
    step_watch: "StepWatch | None" = None
    messages: tf.distribute.experimental.CommunicationOptions | None = None
    allreduce_dtype: str | None = None
    remote: RemoteWorkers | None = None


def of(strategy: object) -> Deployment:
    """Returns the deployment of a strategy; one process for None, and for one that is not ours."""
    return getattr(strategy, "deployment", None) or Deployment()


def remote_workers(strategy: tf.distribute.Strategy) -> RemoteWorkers:
    """Returns the workers of our ParameterServerStrategy."""
    found = of(strategy).remote
    assert found is not None
    return found
