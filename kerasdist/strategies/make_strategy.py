"""From a deployment config to a strategy: the line that touches TensorFlow."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kerasdist import tasks
from kerasdist.cluster import Cluster, Task, proxies
from kerasdist.config import DeploymentConfig
from kerasdist.lifetime import process_end
from kerasdist.preflight import wait_for_peers
from kerasdist.status import task_status
from kerasdist.status.start import start as tell_status
from kerasdist.strategies import membership
from kerasdist.strategies.choice import (
    Choice,
    choose,
    config_or_launched,
    has_number_of_clones,
    place_in,
    rule_of_epoch,
    what_counts_for_task,
)
from kerasdist.strategies.cluster_options import ClusterOptions
from kerasdist.support import launch_note, memory
from kerasdist.support.checks import check_kind
from kerasdist.support.text import counted
from kerasdist.support.users_line import warn
from kerasdist.support.version import installed_version

if TYPE_CHECKING:
    import tensorflow as tf


def make_strategy(
    config: DeploymentConfig | None = None,
    *,
    cluster: Cluster | None = None,
    start_timeout_secs: float = 300,
    heartbeat_timeout_secs: float = 10,
    step_timeout_secs: float = 3600,
    chief_timeout_secs: float = 30,
    wait_for_chief: bool = False,
    communication_options: "tf.distribute.experimental.CommunicationOptions | None" = None,
    allreduce_dtype: str | None = None,
    steps_per_call: int | None = None,
    variable_partitioner: Callable[..., Sequence[int]] | None = None,
) -> "tf.distribute.Strategy":
    """Makes the strategy in whose scope stock `compile`, `fit`, `evaluate` and `predict` work.

    Call it first in the program: TensorFlow fixes its devices with the first tensor. With several
    workers, all of them call it and continue together. With parameter servers, only the chief
    continues: on the workers and ps tasks, this call serves the chief and then ends the process.

    A line says what was chosen and why, once on each task: on stderr, or where the program sends
    the lines of the logger "kerasdist", of which `setLevel("WARNING")` keeps it quiet.

    The same call may be made on every deployment: what has no effect there is told in a warning.

    KERASDIST_STATUS_PORT and KERASDIST_STATUS_FILE let the process tell its state, and that of each
    `fit`, at a port and in a file.

    Args:
        config: What to deploy on. None uses all workers of the cluster and all GPUs of each, or its
            CPU. `python -m kerasdist launch` may set KERASDIST_NUM_CLONES, so many clones instead,
            and KERASDIST_NUM_BACKUP_WORKERS, synchronous workers over parameter servers of which
            an update leaves out so many. A config overrides both, with a warning if they differ.
        cluster: The cluster and this process in it. Defaults to `Cluster.from_env()`.
        start_timeout_secs: How long to wait for the other tasks of the cluster, and then for
            TensorFlow to connect them. Where tasks know one address only, they meet there first,
            for as long.
        heartbeat_timeout_secs: How long a worker that trains may be silent (halted, cut off) before
            the others give it up and end with exit code 138.
        step_timeout_secs: How long `fit` and `evaluate` in a cluster may be without progress before
            the job ends: the task that is late, in a callback or in its data, with exit code 1, the
            others with 138; with parameter servers, a late worker also ends with 138. A late task
            is reported after some seconds.
        chief_timeout_secs: With parameter servers, how long the chief may be gone or silent before
            the workers and ps tasks give it up and end with exit code 138.
        wait_for_chief: Whether the workers and ps tasks instead start their program again, and wait
            up to `start_timeout_secs` for a restarted chief.
        communication_options: A `tf.distribute.experimental.CommunicationOptions` for several
            workers: which all-reduce, and how many bytes it sends at once. None lets TensorFlow
            choose (a ring on CPUs, NCCL on GPUs), with all gradients of a step in one message.
        allreduce_dtype: "float16" or "bfloat16" for several workers: gradients of float32 are sent
            in 16 bits, which halves the messages. Each is rounded once for every replica: float16
            keeps 11 bits and is scaled so that it cannot overflow, bfloat16 keeps 8 and takes one
            message less. The update is float32. None sends what one device computes. `python -m
            kerasdist doctor` prints what the rounding changes.
        steps_per_call: With parameter servers, how many steps a worker runs in one call if the
            model's `steps_per_execution` is 1. None chooses it while training, so that a call takes
            about a tenth of a second and the chief keeps up; it chooses 1 if a callback of your own
            has a hook for each batch, and there is one worker or workers are synchronous.
        variable_partitioner: With parameter servers, one of
            `tf.distribute.experimental.partitioners`, such as `MinSizePartitioner(min_shard_bytes,
            max_shards)`: divides large weights, and their slots, over the ps tasks.

    Returns:
        A `tf.distribute.Strategy`, the same one for the same devices or, in a cluster, for the same
        arguments. So a loop, or a cell of a notebook, may call this again.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A limit is not positive; the config contradicts the cluster or asks for GPUs
            that do not exist; or there are parameter servers, but no chief or several clones on
            CPU.
        RuntimeError: Keras runs on another backend than TensorFlow; TensorFlow has already started,
            with too few logical CPUs, without the cluster, or before this process was forked;
            several workers or parameter servers are asked for, but there is no cluster; or this
            process has already joined a cluster, with other arguments.
        ClusterStartError: A task of the cluster never answered, or differs from the others; the
            message names it.
        SystemExit: This is a worker or ps task that has served: with code 0 if the job is done, and
            138 if the chief failed.

    Example:
        ```python
        strategy = kerasdist.make_strategy(kerasdist.DeploymentConfig(num_clones=2))
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(optimizer="sgd", loss="mse")
        model.fit(dataset)      # batched with the global batch size
        ```
    """
    check_kind("config", config, DeploymentConfig)
    check_kind("cluster", cluster, Cluster)
    options = ClusterOptions(
        start_timeout_secs=start_timeout_secs,
        heartbeat_timeout_secs=heartbeat_timeout_secs,
        step_timeout_secs=step_timeout_secs,
        chief_timeout_secs=chief_timeout_secs,
        wait_for_chief=wait_for_chief,
        communication_options=communication_options,
        allreduce_dtype=allreduce_dtype,
        steps_per_call=steps_per_call,
        variable_partitioner=variable_partitioner,
    )
    _check_backend()
    _check_process()
    launch_note.add(launch_note.JOINED)  # It warns of a program that joins no cluster.
    if cluster is None:
        cluster = Cluster.from_env(timeout_secs=start_timeout_secs)
    tell_status(cluster, at_end=process_end.at_end)
    strategy = _join(config, cluster, options)
    watch = strategy.deployment.step_watch
    task_status.of_process().note_joined(watch.describe_stuck if watch else None)
    _lay_routes(strategy)
    from kerasdist.training.hooks import forgotten_scope

    return tasks.joined(cluster, forgotten_scope.note_strategy(strategy))


def count_gpus() -> int:
    """Returns the number of GPUs that TensorFlow sees on this machine."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def _join(config: DeploymentConfig | None, cluster: Cluster, options: ClusterOptions):
    """Returns the strategy of this task, once its cluster is there."""
    is_evaluator = cluster.task.job == "evaluator"
    config, cluster = what_counts_for_task(config, cluster)
    num_gpus = count_gpus()
    wanted = config_or_launched(config, cluster, num_gpus=num_gpus)
    choice = choose(wanted, cluster, num_gpus=num_gpus)
    task_status.of_process().note_replicas(choice.num_replicas)
    if not is_evaluator:  # An evaluator is given what the others need.
        _warn_of_no_effect(options, choice)
    if not choice.needs_cluster:
        strategy = _construct(choice)
        _say_choice(f"on {', '.join(choice.devices)}", choice)
        return strategy
    if cluster.is_local:
        raise RuntimeError(_describe_missing_cluster(choice))
    known = {
        "cluster": cluster,
        "devices": choice.devices,
        "num_to_aggregate": choice.num_to_aggregate,
        **vars(options),
    }
    strategy = membership.find(known)
    if strategy is not None:
        return strategy
    launch_note.add(launch_note.WAITING)
    if choice.strategy == "MultiWorkerMirroredStrategy":
        strategy = _join_workers(choice, cluster, options)
    else:
        is_given = wanted is not None and has_number_of_clones(config)
        num_clones = str(wanted.num_clones) if is_given else "as found"
        strategy = _join_parameter_servers(choice, cluster, options, _facts(num_clones))
    return membership.note(strategy, known)


def _say_choice(place: str, choice: Choice, task: Task | None = None) -> None:
    """Says what was chosen and why, on each task, unless the logger "kerasdist" is quiet."""
    from kerasdist.training.report import log_lines

    num_replicas = counted(choice.num_replicas, "replica")
    line = f"{choice.strategy}, {num_replicas} {place} ({choice.reason})."
    if choice.num_to_aggregate is not None and task and task.job == "chief":
        rule = rule_of_epoch(choice.num_to_aggregate, num_workers=choice.num_workers)
        line = f"{line} {rule}"
    if memory.PROCESS.say_once(line):  # A loop, or the cell of a notebook, may make it again.
        log_lines.say_as(task, line)


def _warn_of_no_effect(options: ClusterOptions, choice: Choice) -> None:
    for name, purpose in options.without_effect(choice.strategy).items():
        warn(f"`{name}` has no effect here: it is for {purpose}, and this is {choice}.")


def _describe_missing_cluster(choice: Choice) -> str:
    wish, options = f"num_replicas={choice.num_workers}", f"--workers {choice.num_workers}"
    several_devices = (
        " `num_replicas` counts worker processes; for several devices of one machine use "
        f"num_clones={choice.num_workers}."
    )
    if choice.num_ps:
        wish, options = f"num_ps_tasks={choice.num_ps}", f"{options} --ps {choice.num_ps}"
        several_devices = ""
    return (
        f"{wish} needs a cluster, but this process is alone: TF_CONFIG is not set, and no launcher "
        "has told it a rank. Start the program on this machine with "
        f"`python -m kerasdist launch {options} -- python ...`, or by a launcher of "
        f"docs/clusters.md.{several_devices}"
    )


def _facts(num_clones: str) -> dict[str, str]:
    """Returns what all tasks of a cluster must agree on, by its name in their error message."""
    import keras
    import tensorflow as tf

    return {
        "kerasdist": installed_version() or "not installed",
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "number of clones": num_clones,
    }


def _meet(cluster: Cluster, facts: dict[str, str], options: ClusterOptions) -> None:
    wait_for_peers(
        cluster,
        facts=facts,
        timeout_secs=options.start_timeout_secs,
        longer="make_strategy(start_timeout_secs=...)",
    )


def _join_workers(choice: Choice, cluster: Cluster, options: ClusterOptions):
    from kerasdist.private import runtime
    from kerasdist.strategies.logical_cpus import reserve_logical_cpus
    from kerasdist.strategies.multi_worker import MultiWorkerMirroredStrategy

    reserve_logical_cpus(_num_cpus(choice))
    runtime.check_not_started()
    facts = _facts(str(len(choice.devices)))
    facts["allreduce_dtype"] = options.allreduce_dtype or "that of the gradients"
    proxies.bypass(cluster.addresses.values())
    _meet(cluster, facts, options)
    _say_choice(f"as {place_in(cluster)}", choice, cluster.task)
    return MultiWorkerMirroredStrategy(cluster, list(choice.devices), options, reason=choice.reason)


def _join_parameter_servers(
    choice: Choice,
    cluster: Cluster,
    options: ClusterOptions,
    facts: dict[str, str],
):
    proxies.bypass(cluster.addresses.values())
    # As TensorFlow's guide has it: the loss of a task is reported and not waited out.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    os.environ.setdefault("TF_GRPC_DEFAULT_OPTIONS", _keepalive(options.heartbeat_timeout_secs))
    from kerasdist.lifetime import peer_failure
    from kerasdist.lifetime.serving import serve
    from kerasdist.lifetime.shutdown_message import ShutdownMessage
    from kerasdist.lifetime.start_limit import StartLimit
    from kerasdist.private import runtime
    from kerasdist.strategies.parameter_server import ParameterServerStrategy

    runtime.check_not_started()
    _meet(cluster, facts, options)
    _say_choice(f"as {place_in(cluster)}", choice, cluster.task)
    if not cluster.is_chief:
        task_status.of_process().state = task_status.SERVING
        serve(
            cluster,
            num_gpus=sum("GPU" in device for device in choice.devices),
            chief_timeout_secs=options.chief_timeout_secs,
            wait_for_chief=options.wait_for_chief,
        )
    tell = ShutdownMessage(cluster).tell
    peer_failure.handle(cluster, tell=tell)
    with StartLimit(cluster, options.start_timeout_secs):
        return ParameterServerStrategy(
            cluster,
            options,
            num_to_aggregate=choice.num_to_aggregate,
            reason=choice.reason,
            tell=tell,
        )


def _keepalive(heartbeat_timeout_secs: float) -> str:
    """Returns options with which the connection to a task that is halted breaks.

    gRPC's servers regard a third ping in the middle of a long call as an attack, so pings must be
    rare: a worker that is silent in a call for 9 times this long counts as lost.
    """
    msecs = int(1000 * heartbeat_timeout_secs)
    return f"grpc.keepalive_time_ms={3 * msecs},grpc.keepalive_timeout_ms={msecs}"


def _construct(choice: Choice):
    from kerasdist.strategies.logical_cpus import make_logical_cpus

    if num_cpus := _num_cpus(choice):
        make_logical_cpus(num_cpus)
    strategy = _strategy_over(choice.devices)
    strategy.deployment = dataclasses.replace(strategy.deployment, reason=choice.reason)
    return strategy


def _strategy_over(devices: tuple[str, ...]):
    """Returns the strategy of devices of this machine, each time the same one.

    TensorFlow regards an equal one as another one: in its scope, a model of the first has no
    weights that can be read or loaded. And the cell of a notebook that makes it is run again.
    """
    from kerasdist.strategies.mirrored import MirroredStrategy
    from kerasdist.strategies.one_device import OneDeviceStrategy

    made = memory.PROCESS.strategies
    if devices not in made:
        made[devices] = (
            MirroredStrategy(devices) if len(devices) > 1 else OneDeviceStrategy(devices[0])
        )
    return made[devices]


def _num_cpus(choice: Choice) -> int:
    return sum("CPU" in device for device in choice.devices)


def _check_process():
    from kerasdist.private.runtime import check_not_forked

    check_not_forked()


def _lay_routes(strategy: "tf.distribute.Strategy"):
    """Replaces functions of the Keras that is loaded now, if the strategy was made before."""
    from kerasdist.training import routes

    routes.lay(strategy)


def _check_backend():
    remedy = (
        "kerasdist runs Keras on TensorFlow. Set KERAS_BACKEND=tensorflow before Keras is "
        "imported, or remove `backend` from ~/.keras/keras.json."
    )
    wanted = os.environ.get("KERAS_BACKEND", "tensorflow")
    if wanted != "tensorflow":
        raise RuntimeError(f"{remedy} Received: KERAS_BACKEND={wanted}.")
    try:
        import keras
    except ImportError as error:
        raise RuntimeError(f"{remedy} Importing Keras failed: {error}") from error
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(f"{remedy} Received: backend {keras.config.backend()!r}.")
