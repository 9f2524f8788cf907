"""Several machines, or processes: a copy of the model on each device of each, updated in step."""

from collections.abc import Sequence

import tensorflow as tf

from kerasdist.cluster import Cluster
from kerasdist.lifetime import peer_failure, told_loss
from kerasdist.lifetime.exit_notice import ExitNotice
from kerasdist.lifetime.start_limit import StartLimit
from kerasdist.lifetime.step_watch import StepWatch
from kerasdist.lifetime.tensorflow_cluster import make_resolver
from kerasdist.lifetime.termination import TerminationKept
from kerasdist.private import runtime, strategy_adapter
from kerasdist.strategies import random_state
from kerasdist.strategies.cluster_options import ClusterOptions
from kerasdist.training import routes
from kerasdist.training.context.deployment import Deployment


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's MultiWorkerMirroredStrategy, in whose scope stock `fit` equals one device.

    Every worker makes it and runs the same program. The constructor blocks until all are there.

    Args:
        cluster: The workers, and which of them this process is.
        devices: Device names of this worker, one replica each, such as ["GPU:0", "GPU:1"]; the same
            number on every worker.
        options: As `make_strategy` makes them. TensorFlow, too, has the time to start, to connect
            workers that are all running by now; then this process ends with exit code 138.
        reason: Why it was chosen, for the plan.

    Example:
        strategy = kerasdist.make_strategy()  # In each task of a cluster without ps tasks.
        with strategy.scope():
            model = make_model()
    """

    def __init__(
        self, cluster: Cluster, devices: Sequence[str], options: ClusterOptions, *, reason: str = ""
    ):
        runtime.set_heartbeat_timeout(cluster, options.heartbeat_timeout_secs)
        messages = options.communication_options
        messages = messages or tf.distribute.experimental.CommunicationOptions()
        with (
            TerminationKept(),
            StartLimit(cluster, options.start_timeout_secs),
            strategy_adapter.devices_of_worker(devices),
        ):
            num_gpus = sum("GPU" in device for device in devices)
            resolver = make_resolver(cluster, num_accelerators={"GPU": num_gpus})
            super().__init__(resolver, messages)
        watch = StepWatch(cluster, limit_secs=options.step_timeout_secs)
        self.deployment = Deployment(
            cluster=cluster,
            reason=reason,
            step_watch=watch,
            messages=messages,
            allreduce_dtype=options.allreduce_dtype,
        )
        routes.adapt(self)
        peer_failure.handle(cluster)
        told_loss.listen()
        ExitNotice(cluster, is_due=lambda: not watch.was_left)
        random_state.agree(self)
