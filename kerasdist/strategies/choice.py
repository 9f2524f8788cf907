"""Chooses the strategy that fits a deployment, and says why, without TensorFlow.

A pure function, so that it can be called anywhere:

    choice = choose(DeploymentConfig(num_clones=2), Cluster.local(), num_gpus=4)
    choice.strategy, choice.devices      # "MirroredStrategy", ("GPU:0", "GPU:1")
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.support import environment
from kerasdist.support.text import counted
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
        num_to_aggregate: Gradients of each update, where workers of parameter servers are
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
        _check_clones_of_workers(config)
    devices = _devices(config, _num_gpus_of_worker(config, cluster, num_gpus))
    kind = _kind_of(devices, is_forced=config.clone_on_cpu) + _note_of_no_effect(config)
    if config.num_ps_tasks > 0:
        return Choice(
            strategy="ParameterServerStrategy",
            reason=f"num_ps_tasks={config.num_ps_tasks}: {_pace(config, num_to_aggregate)}",
            devices=devices,
            num_workers=config.num_replicas,
            num_ps=config.num_ps_tasks,
            num_to_aggregate=num_to_aggregate,
        )
    if config.num_replicas > 1:
        return Choice(
            strategy="MultiWorkerMirroredStrategy",
            reason=f"num_replicas={config.num_replicas} without ps tasks: synchronous workers"
            f"{_note_of_no_effect(config)}",
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


def place_in(cluster: Cluster) -> str:
    """Returns which task of a cluster this is, and from where it knows.

    Example:
        place_in(cluster)      # "worker 1 of 2 workers, from torchrun (RANK=1, WORLD_SIZE=2)"
    """
    workers = counted(cluster.num_workers, "worker")
    servers = f" and {counted(cluster.num_ps, 'ps task')}" if cluster.num_ps else ""
    return f"{cluster.task} of {workers}{servers}, from {cluster.source or '`cluster`'}"


def config_or_launched(
    config: DeploymentConfig | None,
    cluster: Cluster,
    *,
    num_gpus: int,
    environ: Mapping[str, str] = os.environ,
) -> DeploymentConfig | None:
    """Returns a config, or without one what `launch --clones` and `--backup` ask for.

    In a launch with a range of workers, a config says nothing of their number: those that are there
    count.

    Args:
        config: What the program asks for, which counts; there is a warning if the launch differs.
        cluster: What the environment says.
        num_gpus: GPUs that TensorFlow sees on this machine.
        environ: The variables of the environment.

    Returns:
        None if neither asks for anything.

    Raises:
        ValueError: KERASDIST_NUM_CLONES or KERASDIST_NUM_BACKUP_WORKERS is not a number, the
            cluster cannot have so many backup workers, or the config has a number of workers where
            KERASDIST_WORKERS is a range.
    """
    num_clones = _launched_clones(environ)
    num_backups = _launched_number(environment.NUM_BACKUP_WORKERS, "--backup", environ)
    asked: dict[str, Any] = {}
    if num_clones is not None:
        asked = {"num_clones": num_clones, "clone_on_cpu": num_gpus == 0}
    # An evaluator, too, has the variable, and is alone.
    if num_backups is not None and not cluster.is_local:
        number = _num_left(cluster, num_backups)
        asked |= {"sync_replicas": True, "replicas_to_aggregate": number}
    if config is None:
        return dataclasses.replace(_config_from(cluster, num_gpus), **asked) if asked else None
    _warn_of_other_wishes(config, asked, environ)
    workers = environ.get(environment.WORKERS)
    return _with_workers_of_range(config, cluster, workers) if workers else config


def _with_workers_of_range(
    config: DeploymentConfig, cluster: Cluster, workers: str
) -> DeploymentConfig:
    if config.num_replicas > 1:
        raise ValueError(
            "`num_replicas` cannot be a number where the launch has a range of workers, since it "
            f"changes. Received: num_replicas={config.num_replicas}, as DeploymentConfig asks for, "
            f"and {environment.WORKERS}={workers}. Leave num_replicas out."
        )
    return dataclasses.replace(config, num_replicas=max(cluster.num_workers, 1))


def has_number_of_clones(
    config: DeploymentConfig | None, *, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether the program or the launch says how many clones there are, and not the devices."""
    return config is not None or _launched_clones(environ) is not None


def _launched_clones(environ: Mapping[str, str]) -> int | None:
    number = _launched_number(environment.NUM_CLONES, "--clones", environ)
    return None if number == 1 else number  # 1 is what `launch` sets without being asked.


def _launched_number(variable: str, flag: str, environ: Mapping[str, str]) -> int | None:
    value = environ.get(variable, "")
    try:
        return int(value) if value else None
    except ValueError as error:
        raise ValueError(
            f"{variable} must be a number. Received: {variable}={value!r}. `python -m kerasdist "
            f"launch {flag} N` sets it; otherwise leave it out."
        ) from error


def _num_left(cluster: Cluster, num_backups: int) -> int:
    """Returns the gradients of an update without those of the backup workers."""
    if not cluster.num_ps or not 0 <= num_backups < cluster.num_workers:
        raise ValueError(
            f"Backup workers need parameter servers, and at least one worker besides them. "
            f"Received: {environment.NUM_BACKUP_WORKERS}={num_backups}, in a cluster of "
            f"{cluster.num_workers} workers and {cluster.num_ps} ps tasks. `python -m kerasdist "
            "launch --workers 3 --ps 1 --backup 1` sets all of them; otherwise leave it out."
        )
    return cluster.num_workers - num_backups


def _warn_of_other_wishes(
    config: DeploymentConfig, asked: Mapping[str, Any], environ: Mapping[str, str]
):
    """Warns if the launch has asked for something else than the program."""
    wishes = []
    if asked.get("num_clones", config.num_clones) != config.num_clones:
        wishes.append((environment.NUM_CLONES, "--clones", f"num_clones={config.num_clones}"))
    number = _num_to_aggregate(config)
    if asked.get("replicas_to_aggregate", number) != number:
        told = f"sync_replicas={config.sync_replicas}"
        if config.sync_replicas:
            told += f", replicas_to_aggregate={number}"
        wishes.append((environment.NUM_BACKUP_WORKERS, "--backup", told))
    for variable, flag, wish in wishes:
        warn(
            f"{variable}={environ[variable]}, as `launch {flag}` sets it, has no effect: "
            f"DeploymentConfig asks for {wish}. Make them agree, or give no DeploymentConfig."
        )


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
    """Returns the gradients of each update of synchronous workers of parameter servers."""
    if not config.sync_replicas or not config.num_ps_tasks:
        return None
    number = config.replicas_to_aggregate
    return config.num_replicas if number == -1 else number


def _pace(config: DeploymentConfig, num_to_aggregate: int | None) -> str:
    if num_to_aggregate is None:
        return "asynchronous workers"
    gradient = gradient_of_update(num_to_aggregate, num_workers=config.num_replicas)
    return f"synchronous workers, each update the {gradient}"


def gradient_of_update(num_to_aggregate: int, *, num_workers: int) -> str:
    """Returns what an update of synchronous workers of parameter servers is given."""
    if num_to_aggregate > num_workers:
        workers = counted(num_workers, "worker")
        return f"mean of {num_to_aggregate:,} gradients of {workers}"
    if num_to_aggregate == num_workers:
        each = f"mean of {num_workers:,} gradients, one of each worker"
        return each if num_workers > 1 else "gradient of the one worker"
    first = f"mean of the first {num_to_aggregate:,}" if num_to_aggregate > 1 else "first"
    return f"{first} of {num_workers:,} gradients"


def rule_of_epoch(num_to_aggregate: int, *, num_workers: int) -> str:
    """Returns what becomes of the batches of an epoch of such workers."""
    rule = "An epoch has each batch in exactly one update"
    if num_to_aggregate >= num_workers:
        return f"{rule}."
    return f"{rule}: a gradient that is late is stale, it is dropped, and its batch computed again."


def _note_of_no_effect(config: DeploymentConfig) -> str:
    if not config.sync_replicas:
        return ""
    return "; sync_replicas=True changes nothing without ps tasks"


def _check_clones_of_workers(config: DeploymentConfig):
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
