"""The deployment that the user wants, in the words of the legacy TF-Slim scripts.

A script written for TF-Slim's `model_deploy` keeps its config; `make_strategy` turns it into a
`tf.distribute` strategy. A wrong number is reported here, before TensorFlow starts.

    config = DeploymentConfig(num_clones=2, clone_on_cpu=True)
    strategy = kerasdist.make_strategy(config)
"""

from dataclasses import dataclass
from typing import NoReturn

from kerasdist.support.checks import check_bool, check_int

# Of TF-Slim's DeploymentConfig: the order of its arguments, and what became of its devices.
_ORDER = ("num_clones", "clone_on_cpu", "replica_id", "num_replicas", "num_ps_tasks")
_STRATEGY = "The strategy of `make_strategy(config)` does it: build the model in its scope."
_OF_MODEL_DEPLOY = {
    **dict.fromkeys(("clone_device", "variables_device", "optimizer_device"), _STRATEGY),
    **dict.fromkeys(("ps_device", "worker_device", "caching_device"), _STRATEGY),
    "clone_scope": "Clones have no names here: `print(kerasdist.plan_training(...))` lists them.",
    "inputs_device": "tf.data runs on the CPU of each worker: give the dataset to `fit`.",
}
_MOST_CLONES = 1000  # Far more than a machine has devices.


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentConfig:
    """The deployment the user asks for: how many clones, workers and parameter servers.

    Use it if the script or its flags decide; if TF_CONFIG decides, no config is needed.
    Fields and defaults are those of `DeploymentConfig` in TF-Slim's `deployment/model_deploy.py`,
    and so are two words: a clone is what `tf.distribute` calls a replica (one device's copy of the
    model), and a replica, as in `num_replicas`, is a worker (a process).

    Args:
        num_clones: Devices that train, per worker; each holds a copy of the model.
        clone_on_cpu: Put the clones on CPUs (one logical CPU per clone) even if there are GPUs. For
            tests and for trying several clones on a laptop.
        replica_id: Index of this worker, from 0 to `num_replicas - 1`; different on every worker.
        num_replicas: Workers of the whole job. More than one without parameter servers means
            synchronous workers; TF-Slim did not allow that.
        num_ps_tasks: Parameter servers of the whole job. The default 0 keeps the variables on the
            devices that train; at least 1 makes training asynchronous, without `sync_replicas`.
        sync_replicas: With parameter servers, let the workers train synchronously: each update is
            the mean of the gradients of several batches. Without parameter servers they always do.
        replicas_to_aggregate: Gradients of each update of such workers; each is that of a worker's
            whole batch. The default -1 stands for `num_replicas`, one of each worker. If it is
            less, an update takes the first ones, and nobody waits for the slowest workers; if it
            is more, workers compute several of an update. Both need parameter servers.
        worker_job_name: Name of the workers' job in the cluster.
        ps_job_name: Name of the parameter servers' job in the cluster.

    Raises:
        TypeError: If a field has the wrong type. Bools do not count as numbers.
        ValueError: If a number is out of its range, a job name is empty or used twice, or
            `replicas_to_aggregate` is given where it cannot be had.

    Example:
        Two workers with four devices each; this one is the second:

        ```python
        config = DeploymentConfig(num_clones=4, num_replicas=2, replica_id=1)
        ```

        Three workers over a parameter server; each update takes the first two gradients:

        ```python
        config = DeploymentConfig(
            num_replicas=3, num_ps_tasks=1, sync_replicas=True, replicas_to_aggregate=2
        )
        ```
    """

    num_clones: int = 1
    clone_on_cpu: bool = False
    replica_id: int = 0
    num_replicas: int = 1
    num_ps_tasks: int = 0
    sync_replicas: bool = False
    replicas_to_aggregate: int = -1
    worker_job_name: str = "worker"
    ps_job_name: str = "ps"

    def __new__(cls, *args: object, **fields: object):
        if args:
            told = ", ".join(f"{n}={each!r}" for n, each in zip(_ORDER, args, strict=False))
            raise TypeError(
                f"DeploymentConfig takes its fields by name. Write DeploymentConfig({told})."
            )
        return object.__new__(cls)

    def __getattr__(self, name: str) -> NoReturn:
        instead = _OF_MODEL_DEPLOY.get(name)
        told = f", which TF-Slim's has. {instead}" if instead else "."
        raise AttributeError(f"DeploymentConfig has no attribute {name!r}{told}")

    def __post_init__(self) -> None:
        check_num_clones(self.num_clones)
        check_bool("clone_on_cpu", self.clone_on_cpu)
        check_int("num_replicas", self.num_replicas, at_least=1)
        check_int("replica_id", self.replica_id, at_least=0)
        check_int("num_ps_tasks", self.num_ps_tasks, at_least=0)
        check_bool("sync_replicas", self.sync_replicas)
        _check_replicas_to_aggregate(self)
        _check_job_name("worker_job_name", self.worker_job_name)
        _check_job_name("ps_job_name", self.ps_job_name)
        _check_replica_id_in_range(self.replica_id, self.num_replicas)
        _check_job_names_differ(self.worker_job_name, self.ps_job_name)


def check_num_clones(num_clones: int) -> None:
    """Raises an error unless a machine can have so many devices."""
    check_int("num_clones", num_clones, at_least=1)
    if num_clones > _MOST_CLONES:
        raise ValueError(
            f"`num_clones` must be at most {_MOST_CLONES:,}: it counts the devices of one machine. "
            f"Received: num_clones={num_clones}. For more machines, use num_replicas."
        )


def _check_replicas_to_aggregate(config: DeploymentConfig) -> None:
    number = config.replicas_to_aggregate
    check_int("replicas_to_aggregate", number, at_least=-1)
    if number == 0:
        raise ValueError(
            "`replicas_to_aggregate` must be at least 1, or -1 for all workers. Received: "
            "replicas_to_aggregate=0."
        )
    if not config.num_ps_tasks:  # All workers make each update together, whatever the flag says.
        if number not in (-1, config.num_replicas):
            raise ValueError(_describe_missing_servers(config))
    elif number > 0 and not config.sync_replicas:
        raise ValueError(
            f"`replicas_to_aggregate` is for synchronous workers. Received: replicas_to_aggregate="
            f"{number}, sync_replicas=False. Give sync_replicas=True, too, or leave it out."
        )


def _describe_missing_servers(config: DeploymentConfig) -> str:
    is_less = config.replicas_to_aggregate < config.num_replicas
    reason = (
        "Without them, all workers add up their gradients together, and none can be left out."
        if is_less
        else "Without them, each worker computes one gradient of an update. "
        "`callbacks.GradientAccumulation` adds up several batches there."
    )
    what = "Backup workers" if is_less else "Several gradients of a worker in an update"
    return (
        f"{what} need parameter servers. {reason} Received: replicas_to_aggregate="
        f"{config.replicas_to_aggregate}, num_replicas={config.num_replicas}, num_ps_tasks=0. Use "
        "num_ps_tasks=1, or leave replicas_to_aggregate out."
    )


def _check_job_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a str. Received: {name}={value!r}.")
    if not value.strip():
        raise ValueError(
            f"`{name}` must not be empty. Received: {name}={value!r}. Leave it out for the default."
        )


def _check_replica_id_in_range(replica_id: int, num_replicas: int) -> None:
    if replica_id >= num_replicas:
        raise ValueError(
            "`replica_id` must be less than `num_replicas`; it counts the workers from 0. "
            f"Received: replica_id={replica_id}, num_replicas={num_replicas}."
        )


def _check_job_names_differ(worker_job_name: str, ps_job_name: str) -> None:
    if worker_job_name == ps_job_name:
        raise ValueError(
            "`worker_job_name` and `ps_job_name` must differ. "
            f"Received: worker_job_name={worker_job_name!r}, ps_job_name={ps_job_name!r}."
        )
