"""What the user wants of the deployment, in the words of the legacy TF-Slim scripts.

A script written for TF-Slim's `model_deploy` keeps its config; `make_strategy` makes a
`tf.distribute` strategy of it. A wrong number is reported here, before TensorFlow starts.

    config = DeploymentConfig(num_clones=2, clone_on_cpu=True)
    strategy = kerasdist.make_strategy(config)
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentConfig:
    """The deployment the user asks for: how many clones, workers and parameter servers.

    Use it where the script or its flags decide; where TF_CONFIG decides, no config is needed.
    Fields and defaults are those of `DeploymentConfig` in TF-Slim's `deployment/model_deploy.py`,
    and so are two words: a clone is what `tf.distribute` calls a replica (one device's copy of the
    model), and a replica, as in `num_replicas`, is a worker (a process).

    Args:
        num_clones: Devices that train, per worker; each holds a copy of the model.
        clone_on_cpu: Put the clones on CPUs (one logical CPU per clone) even where there are GPUs.
            For tests and for trying several clones on a laptop.
        replica_id: Index of this worker, from 0 to `num_replicas - 1`. Differs on every worker.
        num_replicas: Workers of the whole job. More than one without parameter servers means
            synchronous workers; TF-Slim did not allow that.
        num_ps_tasks: Parameter servers of the whole job. The default 0 keeps the variables on the
            devices that train; at least 1 makes training asynchronous.
        worker_job_name: Name of the workers' job in the cluster.
        ps_job_name: Name of the parameter servers' job in the cluster.

    Raises:
        TypeError: If a field has the wrong type. A bool is not a number here.
        ValueError: If a number is out of its range, or a job name is empty or used twice.

    Example:
        Two workers with four devices each; this one is the second:

        ```python
        config = DeploymentConfig(num_clones=4, num_replicas=2, replica_id=1)
        ```
    """

    num_clones: int = 1
    clone_on_cpu: bool = False
    replica_id: int = 0
    num_replicas: int = 1
    num_ps_tasks: int = 0
    worker_job_name: str = "worker"
    ps_job_name: str = "ps"

    def __post_init__(self) -> None:
        _check_number("num_clones", self.num_clones, minimum=1)
        _check_bool("clone_on_cpu", self.clone_on_cpu)
        _check_number("num_replicas", self.num_replicas, minimum=1)
        _check_number("replica_id", self.replica_id, minimum=0)
        _check_number("num_ps_tasks", self.num_ps_tasks, minimum=0)
        _check_job_name("worker_job_name", self.worker_job_name)
        _check_job_name("ps_job_name", self.ps_job_name)
        _check_replica_id_in_range(self.replica_id, self.num_replicas)
        _check_job_names_differ(self.worker_job_name, self.ps_job_name)


def _check_number(name: str, value: object, *, minimum: int) -> None:
    # True and False are ints to Python; `num_clones=True` is a slip, not one clone.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an int. Received: {name}={value!r}.")
    if value < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}. Received: {name}={value}.")


def _check_bool(name: str, value: object) -> None:
    # The text "False" is true to Python, so only a real bool will do.
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}.")


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
