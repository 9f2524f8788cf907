"""The flags for devices and processes, with slim's names, and the strategy that they describe.

    cluster = deployment.cluster(values)        # Without TensorFlow: who are we?
    strategy = deployment.make_strategy(values, cluster)

Without flags, the environment decides: TF_CONFIG, Slurm, or the devices of this machine.
"""

import functools
import os
import re

import tensorflow as tf
from absl import flags

import kerasdist
from models.typed_flags import define_count, define_text
from models.usage_error import UsageError

_CONFIG = ("num_clones", "clone_on_cpu", "worker_replicas", "num_ps_tasks", "task")
# By the fields of DeploymentConfig, which its errors name.
_FLAGS_OF_FIELDS = {
    **{name: name for name in ("num_clones", "clone_on_cpu", "num_ps_tasks")},
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
    count("task", 0, "Index of this worker; 0 is the chief. It can be left out.")
    text(
        "worker_hosts",
        "",
        "host:port of each worker, comma-separated. Default: from TF_CONFIG or Slurm.",
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
        raise UsageError(_in_flags(str(error))) from error


def _in_flags(message: str) -> str:
    """Returns a message about DeploymentConfig in the words of the flags."""
    for field, flag in _FLAGS_OF_FIELDS.items():
        message = re.sub(rf"(?<![\w-])`?{field}\b`?", f"--{flag}", message)
    message = message.replace("--clone_on_cpu=True", "--clone_on_cpu")
    message = message.replace("give no DeploymentConfig", "leave these flags out")
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
    config = kerasdist.DeploymentConfig(
        num_clones=values.num_clones,
        clone_on_cpu=values.clone_on_cpu,
        replica_id=values.task,
        num_replicas=_given_or(values.worker_replicas, cluster.num_workers),
        num_ps_tasks=_given_or(values.num_ps_tasks, cluster.num_ps),
    )
    _check_launched_clones(config)
    if cluster.is_local and (config.num_replicas > 1 or config.num_ps_tasks):
        raise UsageError(_describe_missing_cluster(config))
    return config


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
