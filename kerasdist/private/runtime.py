"""TensorFlow in this process: whether it has started, its seed, profile and coordination service.

The service knows which tasks of a cluster live, and carries short messages between them.

tests/private/test_runtime.py fails when one of these names moves, tests/cluster when one does
something else. Written against TensorFlow 2.20 and 2.21.
"""

import contextlib
import os

import psutil
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import config

from kerasdist.cluster import Cluster
from kerasdist.support import memory


def check_not_started() -> None:
    """Checks that TensorFlow can still become part of a cluster.

    Raises:
        RuntimeError: It has made its devices already.
    """
    if context.context()._initialized:
        raise RuntimeError(
            "TensorFlow has started without the cluster: a tensor, a model or a list of devices "
            "was made before. Call `make_strategy` first in the program, right after the imports; "
            "TF_CONFIG must be set by then."
        )


def check_not_forked() -> None:
    """Checks that this process has the threads of TensorFlow, if TensorFlow has started.

    Raises:
        RuntimeError: It is a copy of a process in which TensorFlow had started: its first step, or
            already its first model, would wait for ever.
    """
    known = memory.PROCESS.processes_with_tensorflow
    if not context.context()._initialized or os.getpid() in known:
        return
    # The copy of a parent that was not asked has one thread, where TensorFlow starts several.
    if known or psutil.Process().num_threads() == 1:
        raise RuntimeError(
            "This process was forked from one in which TensorFlow had started, and has none of its "
            "threads: `fit` would wait for ever. Start it with "
            '`multiprocessing.get_context("spawn")`, or fork before the first tensor, model or '
            "strategy is made."
        )
    known.add(os.getpid())


def global_seed() -> int | None:
    """Returns the seed that the user gave TensorFlow; its public way to ask draws a number."""
    return context.global_seed()


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called: there is no public way."""
    return config.is_op_determinism_enabled()


def set_heartbeat_timeout(cluster: Cluster, secs: float) -> None:
    """Sets how long a worker may be silent; call it before the strategy is made.

    TensorFlow has no other way than its private one, and leaves alone what is set already.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.chief.job}/replica:0/task:{cluster.chief.index}",
        heartbeat_timeout_in_ms=int(secs * 1000),
        coordinated_jobs=[
            # Protocol buffers make their classes at run time.
            coordination_config_pb2.CoordinatedJob(  # ty: ignore[missing-attribute]
                name=job, num_tasks=len(addresses)
            )
            for job, addresses in cluster.jobs.items()
        ],
    )


def post(key: str) -> None:
    """Sets a key at TensorFlow's coordination service, unless it is set."""
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.context().set_config_key_value(key, "posted")


def is_posted(key: str, *, secs: float) -> bool:
    """Waits until a worker has set a key, at most so long; returns whether one has."""
    try:
        context.context().get_config_key_value(key, int(secs * 1000))
    except tf.errors.DeadlineExceededError:
        return False
    return True


def replace(key: str, value: str) -> None:
    """Sets a key at TensorFlow's coordination service, or nothing where the service is gone."""
    with contextlib.suppress(tf.errors.OpError):
        context.context().delete_config_key_value(key)
    with contextlib.suppress(tf.errors.OpError):
        context.context().set_config_key_value(key, value)


def read(key: str, *, secs: float) -> str:
    """Returns what a worker has set, waiting for it at most so long; "" where there is nothing."""
    try:
        return context.context().get_config_key_value(key, int(secs * 1000))
    except tf.errors.OpError:
        return ""


def report_error(message: str) -> None:
    """Lets the collectives of all other workers fail with a message."""
    context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)


def abort_collectives(message: str) -> None:
    """Lets the collectives of this worker fail with a message, those that run and all later."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def parsed_profile(content: bytes):
    """Returns the profile of `tf.profiler.experimental.stop`, an XSpace message.

    TensorFlow writes it, and has no public class to read it.

    Raises:
        ValueError: It is no such profile.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    try:
        return xplane_pb2.XSpace.FromString(content)  # ty: ignore[missing-attribute]
    except Exception as error:  # Protobuf's own, which TensorFlow brings with it.
        raise ValueError("it cannot be parsed") from error
