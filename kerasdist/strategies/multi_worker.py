"""Several machines, or processes: a copy of the model on each device of each, updated in step."""

import tensorflow as tf

from kerasdist.cluster import Cluster
from kerasdist.cluster_resolver import make_resolver
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.farewell import Farewell
from kerasdist.lifetime.step_watch import StepWatch
from kerasdist.private import service_adapter, tensorflow_adapter
from kerasdist.strategies import random_state
from kerasdist.training import routes


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's MultiWorkerMirroredStrategy, in whose scope stock `fit` equals one device.

    Every worker makes it and runs the same program. The constructor blocks until all are there.

    Args:
        cluster: The workers, and which of them this process is.
        devices: Device names of this worker, one replica each, such as ["GPU:0", "GPU:1"]; the same
            number on every worker.
        start_timeout_secs: How long TensorFlow may take to connect the workers, all of which are
            running by now; after that, this process ends with exit code 138.
        heartbeat_timeout_secs: How long a worker may be silent before the others give it up.
        step_timeout_secs: How long `fit` and `evaluate` may be without progress before all end.
        reason: Why it was chosen, for the plan.
        communication_options: A `tf.distribute.experimental.CommunicationOptions`; None lets
            TensorFlow choose the all-reduce, and sends each step's gradients in one message.

    Example:
        strategy = MultiWorkerMirroredStrategy(
            Cluster.from_env(),
            ["CPU:0"],
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
        devices,
        *,
        start_timeout_secs: float,
        heartbeat_timeout_secs: float,
        step_timeout_secs: float,
        reason: str = "",
        communication_options=None,
    ):
        service_adapter.set_heartbeat_timeout(cluster, heartbeat_timeout_secs)
        with (
            peer_failure.TerminationKept(),
            peer_failure.StartLimit(cluster, start_timeout_secs),
            tensorflow_adapter.devices_of_worker(devices),
        ):
            options = communication_options or tf.distribute.experimental.CommunicationOptions()
            num_gpus = sum("GPU" in device for device in devices)
            resolver = make_resolver(cluster, num_accelerators={"GPU": num_gpus})
            super().__init__(resolver, options)
        self.communication_options = options
        self.cluster = cluster
        self.reason = reason
        self.step_watch = StepWatch(cluster, limit_secs=step_timeout_secs)
        routes.adapt(self)
        peer_failure.handle(cluster)
        Farewell(cluster, is_due=lambda: not self.step_watch.was_left)
        random_state.agree(self)
