"""Chooses the strategy that fits a deployment, and says why, without TensorFlow.

A pure function, so that it can be called anywhere:

    choice = choose(DeploymentConfig(num_clones=2), Cluster.local(), num_gpus=4)
    choice.strategy, choice.devices      # "MirroredStrategy", ("GPU:0", "GPU:1")
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Literal

from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.support import environment
from kerasdist.support.users_line import warn

StrategyName = Literal[
    "OneDeviceStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The strategy for a deployment.

    Attributes:
        strategy: Name of the TensorFlow strategy.
        reason: Why this one was chosen, for the person who starts the run.
        devices: The devices of each worker, one replica on each.
        num_workers: Worker tasks of the cluster.
        num_ps: Parameter server tasks of the cluster.
        num_to_aggregate: Batches of each update, where workers of parameter servers are
            synchronous; else None.
    """

    strategy: StrategyName
    reason: str
    devices: tuple[str, ...]
    num_workers: int = 1
    num_ps: int = 0
    num_to_aggregate: int | None = None

    def __str__(self) -> str:
        return f"{self.strategy} ({self.reason})"

    @property
    def num_replicas(self) -> int:
        """Copies of the model, over all workers."""
        return self.num_workers * len(self.devices)

    @property
    def needs_cluster(self) -> bool:
        """Whether it needs other tasks than this process."""
        return self.num_workers > 1 or self.num_ps > 0


def choose(config: DeploymentConfig | None, cluster: Cluster, *, num_gpus: int) -> Choice:
    """Chooses the strategy for what the user wants and what the environment has.

    Args:
        config: What the user wants. None lets the cluster and the devices decide: all workers of
            the cluster, and all GPUs of each, or its CPU.
        cluster: What the environment says.
        num_gpus: GPUs that TensorFlow sees on this machine.

    Raises:
        ValueError: The config contradicts the cluster, or asks for more GPUs than there are; or
            there are parameter servers, but no chief or several clones on CPU.

    Example:
        choose(None, Cluster.local(), num_gpus=0).strategy      # "OneDeviceStrategy"
    """
    if config is None:
        config = _config_from(cluster, num_gpus)
        wish = "no DeploymentConfig given"
    else:
        wish = f"num_clones={config.num_clones}"
    _check_against_cluster(config, cluster)
    num_to_aggregate = _num_to_aggregate(config)
    if config.num_ps_tasks > 0:
        _check_clones_of_asynchronous_workers(config)
    devices = _devices(config, _num_gpus_of_worker(config, cluster, num_gpus))
    kind = _kind_of(devices, is_forced=config.clone_on_cpu)
    if config.num_ps_tasks > 0:
        return Choice(
            strategy="ParameterServerStrategy",
            reason=f"num_ps_tasks={config.num_ps_tasks}: {_pace(num_to_aggregate)}",
            devices=devices,
            num_workers=config.num_replicas,
            num_ps=config.num_ps_tasks,
            num_to_aggregate=num_to_aggregate,
        )
    if config.num_replicas > 1:
        return Choice(
            strategy="MultiWorkerMirroredStrategy",
            reason=f"num_replicas={config.num_replicas} without ps tasks: synchronous workers",
            devices=devices,
            num_workers=config.num_replicas,
        )
    if len(devices) > 1:
        return Choice(strategy="MirroredStrategy", reason=f"{wish}: {kind}", devices=devices)
    return Choice(strategy="OneDeviceStrategy", reason=f"{wish}: {kind}", devices=devices)


def what_counts_for_task(
    config: DeploymentConfig | None, cluster: Cluster
) -> tuple[DeploymentConfig | None, Cluster]:
    """Returns what `choose` is to be asked with in a task: an evaluator is beside the cluster.

    It reads checkpoints by itself, on the devices of its machine.
    """
    if cluster.task.job == "evaluator":
        return None, Cluster.local()
    return config, cluster


def config_or_launched(
    config: DeploymentConfig | None,
    cluster: Cluster,
    *,
    num_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> DeploymentConfig | None:
    """Returns a config, or without one what `python -m kerasdist launch --clones` asks for.

    Args:
        config: What the program asks for, which counts; there is a warning if the launch differs.
        cluster: What the environment says.
        num_gpus: GPUs that TensorFlow sees on this machine.
        environ: The variables of the environment.

    Returns:
        None if neither asks for anything.

    Raises:
        ValueError: KERASDIST_NUM_CLONES is not a number.
    """
    num_clones = _launched_clones(environ)
    if config is None and num_clones != 1:
        return DeploymentConfig(
            num_clones=num_clones,
            clone_on_cpu=num_gpus == 0,
            num_replicas=cluster.num_workers,
            num_ps_tasks=cluster.num_ps,
        )
    if config is not None and num_clones not in (1, config.num_clones):
        warn(
            f"{environment.NUM_CLONES}={num_clones}, as `launch --clones` sets it, has no effect: "
            f"DeploymentConfig asks for num_clones={config.num_clones}. Make them agree, or give "
            "no DeploymentConfig."
        )
    return config


def _launched_clones(environ: Mapping[str, str]) -> int:
    value = environ.get(environment.NUM_CLONES, "1")
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(
            f"{environment.NUM_CLONES} must be a number. Received: "
            f"{environment.NUM_CLONES}={value!r}. `python -m kerasdist launch --clones N` sets it; "
            "otherwise leave it out."
        ) from error


def _config_from(cluster: Cluster, num_gpus: int):
    return DeploymentConfig(
        num_clones=max(num_gpus, 1),
        num_replicas=max(cluster.num_workers, 1),
        num_ps_tasks=cluster.num_ps,
    )


def _check_against_cluster(config: DeploymentConfig, cluster: Cluster):
    if config.num_replicas == 1 and config.num_ps_tasks == 0 and cluster.is_local:
        return
    names = (config.worker_job_name, config.ps_job_name)
    if names != ("worker", "ps"):
        raise ValueError(
            "TensorFlow's strategies only know the jobs 'worker' and 'ps'. Received: "
            f"worker_job_name={names[0]!r}, ps_job_name={names[1]!r}. Use the default names, in "
            "DeploymentConfig and in the cluster."
        )
    if not cluster.jobs:
        return
    wanted = (config.num_replicas, config.num_ps_tasks)
    found = (cluster.num_workers, cluster.num_ps)
    if wanted != found:
        raise ValueError(
            f"DeploymentConfig asks for num_replicas={wanted[0]}, num_ps_tasks={wanted[1]}, but "
            f"the cluster has {found[0]} workers and {found[1]} ps tasks. Make them agree, give no "
            "DeploymentConfig, or unset TF_CONFIG if it is left over from another job."
        )
    if cluster.num_ps and "chief" not in cluster.jobs:
        raise ValueError(_describe_missing_chief(cluster))
    if config.replica_id not in (0, cluster.worker_index):
        raise ValueError(
            f"DeploymentConfig says replica_id={config.replica_id}, but the cluster says that "
            f"this is {cluster.task}. Leave replica_id out: the cluster knows it."
        )


def _describe_missing_chief(cluster: Cluster):
    return (
        "With parameter servers, a chief runs the program, and the workers serve it. "
        f'Received: jobs {", ".join(cluster.jobs)}. Add "chief": ["host:port"] to the cluster in '
        "TF_CONFIG, or `chief_host` to addresses given by hand, and start one more process. "
        f"On this machine, `python -m kerasdist launch --workers {cluster.num_workers} --ps "
        f"{cluster.num_ps}` starts a chief too."
    )


def _num_to_aggregate(config: DeploymentConfig) -> int | None:
    """Returns the batches of each update of synchronous workers of parameter servers."""
    if not config.sync_replicas:
        return None
    number = config.replicas_to_aggregate
    number = config.num_replicas if number == -1 else number
    is_of_all = number == config.num_replicas
    if number < config.num_replicas or not (config.num_ps_tasks or is_of_all):
        raise ValueError(
            "Backup workers, and several batches of a worker in an update, cannot be had here. "
            f"Received: replicas_to_aggregate={number}, num_replicas={config.num_replicas}, "
            f"num_ps_tasks={config.num_ps_tasks}. Leave replicas_to_aggregate out."
        )
    return number if config.num_ps_tasks else None


def _pace(num_to_aggregate: int | None) -> str:
    if num_to_aggregate is None:
        return "asynchronous workers"
    return f"synchronous workers, {num_to_aggregate} batches in an update"


def _check_clones_of_asynchronous_workers(config: DeploymentConfig):
    if config.clone_on_cpu and config.num_clones > 1:
        raise ValueError(
            "With parameter servers, a worker has one replica on its CPU, or one on each of its "
            "GPUs: TensorFlow's ParameterServerStrategy does not support logical CPUs. Received: "
            f"num_clones={config.num_clones}, clone_on_cpu=True, num_ps_tasks="
            f"{config.num_ps_tasks}. Use num_clones=1, and more workers."
        )


def _num_gpus_of_worker(config: DeploymentConfig, cluster: Cluster, num_gpus: int):
    # The machines of chief and ps need no GPUs, and do not know those of the workers.
    is_worker = cluster.task.job == "worker"
    return num_gpus if is_worker or config.num_clones == 1 else config.num_clones


def _devices(config: DeploymentConfig, num_gpus: int):
    if config.clone_on_cpu or (num_gpus == 0 and config.num_clones == 1):
        return tuple(f"CPU:{index}" for index in range(config.num_clones))
    if config.num_clones > num_gpus:
        exists = ", ".join(f"GPU:{index}" for index in range(num_gpus)) or "none"
        raise ValueError(
            f"`num_clones` is larger than the number of GPUs. Received: num_clones="
            f"{config.num_clones}; GPUs that TensorFlow sees: {exists}. Use fewer clones, or "
            "clone_on_cpu=True for logical CPUs."
        )
    return tuple(f"GPU:{index}" for index in range(config.num_clones))


def _kind_of(devices: tuple[str, ...], *, is_forced: bool):
    if len(devices) > 1:
        return f"{len(devices)} {'GPUs' if 'GPU' in devices[0] else 'logical CPUs'} of one machine"
    if "GPU" in devices[0]:
        return "one GPU"
    return "one CPU" if is_forced else "one CPU, since TensorFlow sees no GPU"
