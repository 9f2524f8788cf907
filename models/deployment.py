"""The flags for devices and processes, with slim's names, and the strategy that they describe.

    cluster = deployment.cluster(values)        # Without TensorFlow: who are we?
    strategy = deployment.make_strategy(values, cluster)

Without flags, the environment decides: TF_CONFIG, a launcher, or the devices of this machine.
"""

import functools
import os
import re
from typing import Any

import tensorflow as tf
from absl import flags

import kerasdist

from .typed_flags import define_count, define_text
from .usage_error import UsageError

_SYNCHRONOUS = ("sync_replicas", "replicas_to_aggregate", "num_replicas_to_aggregate")
_CONFIG = ("num_clones", "clone_on_cpu", "worker_replicas", "num_ps_tasks", "task", *_SYNCHRONOUS)
# By the fields of DeploymentConfig, which its errors name.
_FLAGS_OF_FIELDS = {
    **{name: name for name in ("num_clones", "clone_on_cpu", "num_ps_tasks")},
    **{name: name for name in ("sync_replicas", "replicas_to_aggregate")},
    **{"replica_id": "task", "num_replicas": "worker_replicas"},
}
_HOSTS = ("ps_hosts", "chief_host", "job_name", "task_id")


def define_flags(values: flags.FlagValues) -> None:
    """Defines slim's flags of clones and replicas, and those of the distributed Inception."""
    text = functools.partial(define_text, values)
    # kerasdist checks these numbers and says what is wrong with them.
    count = functools.partial(define_count, values, at_least=None)

    count("num_clones", 1, "Replicas of the model on each worker, one per device.")
    flags.DEFINE_bool("clone_on_cpu", False, "Put the clones on CPUs.", flag_values=values)
    count("worker_replicas", None, "Number of workers. Default: that of the cluster, or 1.")
    count("num_ps_tasks", None, "Number of parameter servers. Default: that of the cluster, or 0.")
    flags.DEFINE_bool(
        "sync_replicas",
        False,
        "With parameter servers: workers train synchronously. Without, they always do.",
        flag_values=values,
    )
    count(
        "replicas_to_aggregate",
        -1,
        "With --sync_replicas: gradients of each update. -1: one of each worker. With "
        "--num_ps_tasks, less than there are workers: the first ones, nobody waits for the others.",
    )
    count(
        "num_replicas_to_aggregate",
        -1,
        "The name that the Inception trainer has for --sync_replicas --replicas_to_aggregate.",
    )
    count("task", 0, "Index of this worker; 0 is the chief. It can be left out.")
    text(
        "worker_hosts",
        "",
        "host:port of each worker, comma-separated. Default: from TF_CONFIG or a launcher.",
    )
    text("ps_hosts", "", "host:port of each parameter server. Needs --worker_hosts.")
    text("chief_host", "", "host:port of the chief, with --ps_hosts. Needs --worker_hosts.")
    text("job_name", "worker", "Job of this process: chief, worker, ps. Needs --worker_hosts.")
    count("task_id", 0, "Index of this process in its job. Needs --worker_hosts.")


def cluster(values: flags.FlagValues) -> kerasdist.Cluster:
    """Returns the cluster of --worker_hosts, or else the one that the environment describes.

    Raises:
        UsageError: The flags or the environment describe an invalid cluster, or both describe one.
    """
    try:
        if not values["worker_hosts"].present:
            _check_no_hosts(values)
            return kerasdist.Cluster.from_env()
        if os.environ.get("TF_CONFIG", "").strip():
            raise UsageError(
                f"--worker_hosts={values.worker_hosts} and TF_CONFIG both say what the cluster is. "
                "Leave --worker_hosts out, or unset TF_CONFIG."
            )
        return kerasdist.Cluster.from_hosts(
            worker_hosts=values.worker_hosts,
            ps_hosts=values.ps_hosts,
            chief_host=values.chief_host,
            job_name=values.job_name,
            task_id=values.task_id,
        )
    except ValueError as error:
        raise UsageError(_in_flags_of_hosts(str(error), values)) from error


def _in_flags_of_hosts(message: str, values: flags.FlagValues) -> str:
    """Returns a message about `Cluster.from_hosts` in the words of the flags."""
    names = [name for name in ("worker_hosts", *_HOSTS) if values[name].present]
    given = " ".join(f"--{name}={values[name].value}" for name in names)
    found = re.fullmatch(r"from_hosts\(.*?\): (.*)", message, re.DOTALL)
    return f"{given}: {found[1]}".replace('"index"', "--task_id") if found else message


def make_strategy(values: flags.FlagValues, cluster: kerasdist.Cluster) -> tf.distribute.Strategy:
    """Returns the strategy for the flags in this cluster; several workers wait for each other.

    Raises:
        UsageError: The flags ask for something unsupported, or contradict the cluster.
        kerasdist.ClusterStartError: The other tasks did not start, or do not match.
    """
    try:
        config = _config(values, cluster)
        return kerasdist.make_strategy(config, cluster=cluster)
    except kerasdist.ClusterStartError:
        raise
    except (ValueError, RuntimeError) as error:
        raise UsageError(_in_flags(str(error), values)) from error


def num_to_aggregate(values: flags.FlagValues, cluster: kerasdist.Cluster) -> int:
    """Returns how many batches, one worker's each, make an update together."""
    if not cluster.num_ps:
        return cluster.num_workers
    if not has_synchronous_servers(values, cluster):
        return 1
    number = _synchronous(values, cluster)["replicas_to_aggregate"]
    return cluster.num_workers if number == -1 else number


def num_preprocessing_threads(
    values: flags.FlagValues, cluster: kerasdist.Cluster, strategy: tf.distribute.Strategy
) -> int:
    """Returns how many threads of this process prepare images, for all of its clones."""
    # Beside parameter servers each worker is one.
    num_clones = max(1, strategy.num_replicas_in_sync // cluster.num_workers)
    return values.num_preprocessing_threads * num_clones


def has_synchronous_servers(values: flags.FlagValues, cluster: kerasdist.Cluster) -> bool:
    """Whether parameter servers make each update from the gradients of several workers."""
    return bool(cluster.num_ps) and _synchronous(values, cluster)["sync_replicas"]


def _in_flags(message: str, values: flags.FlagValues) -> str:
    """Returns a message about DeploymentConfig in the words of the flags."""
    for field, flag in _FLAGS_OF_FIELDS.items():
        message = re.sub(rf"(?<![\w-])`?{field}\b`?", f"--{flag}", message)
    for name in "clone_on_cpu", "sync_replicas":
        message = message.replace(f"--{name}=True", f"--{name}")
    if values["num_replicas_to_aggregate"].present:
        message = message.replace("--replicas_to_aggregate", "--num_replicas_to_aggregate")
    message = message.replace("give no DeploymentConfig", "leave these flags out")
    message = message.replace(
        "`chief_host` to addresses given by hand", "--chief_host=host:port to --worker_hosts"
    )
    return re.sub(r"DeploymentConfig (ask|say)s", r"The flags \1", message)


def _check_no_hosts(values: flags.FlagValues) -> None:
    for name in _HOSTS:
        if values[name].present:
            raise UsageError(
                f"--{name}={values[name].value} needs --worker_hosts, the addresses of all "
                "workers. Leave it out if TF_CONFIG says what this process is."
            )


def _config(
    values: flags.FlagValues, cluster: kerasdist.Cluster
) -> kerasdist.DeploymentConfig | None:
    """Returns what the flags ask for; None if they leave it to the cluster and the devices."""
    if not any(values[name].present for name in _CONFIG):
        return None
    # A launch with a range of workers wants none here: it changes.
    num_workers = 1 if os.environ.get("KERASDIST_WORKERS") else cluster.num_workers
    config = kerasdist.DeploymentConfig(
        num_clones=values.num_clones,
        clone_on_cpu=values.clone_on_cpu,
        replica_id=values.task,
        num_replicas=_given_or(values.worker_replicas, num_workers),
        num_ps_tasks=_given_or(values.num_ps_tasks, cluster.num_ps),
        **_synchronous(values, cluster),
    )
    _check_launched_clones(config)
    if cluster.is_local and (config.num_replicas > 1 or config.num_ps_tasks):
        raise UsageError(_describe_missing_cluster(config))
    return config


def _synchronous(values: flags.FlagValues, cluster: kerasdist.Cluster) -> dict[str, Any]:
    """Returns what the flags, or else the launch, say of synchronous workers, by fields."""
    of_flags, of_launch = _synchronous_in_flags(values), _synchronous_in_launch(cluster)
    given = [name for name in _SYNCHRONOUS if values[name].present]
    if not of_launch or not given:
        return of_launch or of_flags
    number = of_flags["replicas_to_aggregate"]
    meant = of_flags | {"replicas_to_aggregate": cluster.num_workers if number == -1 else number}
    if meant != of_launch:
        told = " ".join(f"--{name}={values[name].value}" for name in given)
        raise UsageError(
            f"{told} contradicts --backup of the launch, which is --sync_replicas "
            f"--replicas_to_aggregate={of_launch['replicas_to_aggregate']}. Leave one of them out."
        )
    return of_launch


def _synchronous_in_launch(cluster: kerasdist.Cluster) -> dict[str, Any]:
    """Returns what `launch --backup` asks for; nothing without it."""
    num_backups = os.environ.get("KERASDIST_NUM_BACKUP_WORKERS", "")
    # What is no number here, `make_strategy` refuses.
    if not num_backups.isdecimal() or not cluster.num_ps:
        return {}
    number = cluster.num_workers - int(num_backups)
    return {"sync_replicas": True, "replicas_to_aggregate": number}


def _synchronous_in_flags(values: flags.FlagValues) -> dict[str, Any]:
    """Returns fields of DeploymentConfig: the Inception trainer has one flag for both."""
    of_slim, of_inception = values["replicas_to_aggregate"], values["num_replicas_to_aggregate"]
    if not of_inception.present:
        return {"sync_replicas": values.sync_replicas, "replicas_to_aggregate": of_slim.value}
    if of_slim.present and of_slim.value != of_inception.value:
        raise UsageError(
            f"--replicas_to_aggregate={of_slim.value} and --num_replicas_to_aggregate="
            f"{of_inception.value} are two names of one number. Give one of them."
        )
    is_sync = values.sync_replicas or not values["sync_replicas"].present
    return {"sync_replicas": is_sync, "replicas_to_aggregate": of_inception.value}


def _describe_missing_cluster(config: kerasdist.DeploymentConfig) -> str:
    wish, options = f"--worker_replicas={config.num_replicas}", f"--workers {config.num_replicas}"
    if config.num_ps_tasks:
        wish = f"--num_ps_tasks={config.num_ps_tasks}"
        options = f"{options} --ps {config.num_ps_tasks}"
    return (
        f"{wish} needs a cluster, and this process is alone. Put `python -m kerasdist launch "
        f"{options} --` before the command to run it on this machine; on many machines, set "
        "TF_CONFIG or --worker_hosts."
    )


def _given_or(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_launched_clones(config: kerasdist.DeploymentConfig) -> None:
    launched = os.environ.get("KERASDIST_NUM_CLONES", "1")
    if launched not in ("1", str(config.num_clones)):
        raise UsageError(
            f"--num_clones={config.num_clones} (default: 1) contradicts --clones {launched} of the "
            f"launch. Give --num_clones={launched}, and --clone_on_cpu on a machine without GPUs, "
            "or leave --clones out."
        )
