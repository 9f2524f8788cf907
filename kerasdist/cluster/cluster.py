"""The processes of the job, from TF_CONFIG, a launcher, or addresses given by hand."""

import contextlib
import functools
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from kerasdist.cluster.jobs import addresses_by_task, check_jobs, check_task
from kerasdist.cluster.launchers import Membership, read_membership
from kerasdist.cluster.lone_process import ALONE_ON_PURPOSE, check_is_meant, check_launched
from kerasdist.cluster.meeting import meet
from kerasdist.cluster.slurm import is_step, read_step
from kerasdist.cluster.task import Task, read_index
from kerasdist.cluster.tf_config import TFConfig, read_cluster_spec, read_tf_config
from kerasdist.messages.address import check_address
from kerasdist.messages.errors import ClusterStartError
from kerasdist.support import environment, memory
from kerasdist.support.checks import check_int, check_positive, check_text
from kerasdist.support.users_line import warn


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The processes of the job and their addresses, as this process sees them.

    Usually made by `from_env`; by `from_hosts` or by hand if flags of the program decide.

    Args:
        jobs: Maps "chief", "worker" and "ps" to the addresses "host:port" of its tasks, in the same
            order on every task; kept as read-only tuples. Empty if this process is alone.
        task: This process. An evaluator does not belong to any job: it takes no part in training.
        source: From where this is known, for messages, such as "TF_CONFIG". Clusters that differ in
            this alone are equal.

    Raises:
        ValueError: If the jobs, an address or the task cannot work; the message shows which.
        TypeError: `jobs` is not a mapping, or `task` is not a Task.

    Example:
        ```python
        cluster = Cluster(jobs={"worker": ["a:2222", "b:2222"]}, task=Task("worker", 0))
        cluster.num_workers  # 2
        ```
    """

    jobs: Mapping[str, Sequence[str]] = field(hash=False)  # A mapping has no hash.
    task: Task
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _check_types(self)
        check_jobs(self.jobs)
        jobs = {job: tuple(addresses) for job, addresses in self.jobs.items()}
        object.__setattr__(self, "jobs", MappingProxyType(jobs))
        _check_has_workers(self)
        check_task(self.task, jobs)

    def __reduce__(self):
        # A read-only mapping cannot be pickled, and clusters travel to child processes.
        known = {"jobs": dict(self.jobs), "task": self.task, "source": self.source}
        return functools.partial(Cluster, **known), ()

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        timeout_secs: float = 300,
        meet: bool = True,
    ) -> "Cluster":
        """Returns the cluster that the environment describes, or else a local one.

        TF_CONFIG decides if it is set, or else Vertex AI's CLUSTER_SPEC. Otherwise a launcher that
        tells each process its rank, such as `torchrun` or `mpirun`: the processes meet, as in
        `join`. Otherwise Slurm, if `srun` started this process as one of several tasks (see
        `kerasdist.cluster.slurm.read_step` for the ports); otherwise this process is alone.
        TF_CONFIG={} makes every process train alone. There is a warning if it is alone although
        something says that there are others.

        Keys of TF_CONFIG that cloud launchers add ("environment", "job", "trial", ...) are ignored.

        Args:
            environ: The variables to read.
            timeout_secs: How long to wait for the others where the processes have to meet.
            meet: Whether to wait for them. If not, addresses that are unknown are those of no
                machine: "rank-1.invalid:1".

        Raises:
            ValueError: If TF_CONFIG is not JSON, or was removed in a task of `python -m kerasdist
                launch`, or the variables describe a cluster that cannot work.
            ClusterStartError: The processes have not met; see `join`.

        Example:
            ```python
            Cluster.from_env({}).is_local  # True
            ```
        """
        cluster = _from_text(environ)
        if cluster is None:
            check_launched(environ)
            found = read_membership(environ, is_in_step=is_step(environ))
            if found is not None:
                cluster = _from_membership(found, environ, timeout_secs=timeout_secs, waits=meet)
            else:
                with _errors_of("Slurm"):
                    cluster = _from_slurm(environ)
                if not cluster.jobs:
                    check_is_meant(environ)
        _warn_of_num_ps(cluster, environ)
        return cluster

    @classmethod
    def join(
        cls,
        address: str,
        *,
        rank: int,
        num_processes: int,
        num_ps: int = 0,
        timeout_secs: float = 300,
    ) -> "Cluster":
        """Returns the cluster of processes that know no more than one address.

        The process of rank 0 listens there. The others tell it where they are, and each gets the
        whole cluster back. TensorFlow then listens in each process at KERASDIST_PORT, or at a free
        port from 12000 on, and is reached under KERASDIST_HOST, or the address from which the
        process has called. Processes meet once: the same call again returns the same cluster.

        Args:
            address: "host:port" at which the process of rank 0 listens.
            rank: Which of the processes this one is, from 0. The first one is the chief.
            num_processes: How many there are.
            num_ps: How many of them are parameter servers: the last ranks. Then the first one only
                coordinates, and those between are the workers.
            timeout_secs: How long to wait for the others.

        Raises:
            TypeError, ValueError: An argument has another type, or contradicts the others.
            ClusterStartError: A process has not come in time; two have the same rank, or were told
                another number. All that have come hear the same message.

        Example:
            ```python
            cluster = Cluster.join("node-0:29500", rank=1, num_processes=2)
            strategy = kerasdist.make_strategy(cluster=cluster)
            ```
        """
        check_address("the process of rank 0", address)
        check_int("num_processes", num_processes, at_least=1)
        check_int("rank", rank, at_least=0)
        check_int("num_ps", num_ps, at_least=0)
        check_positive("timeout_secs", timeout_secs)
        told = _Told(address, rank, num_processes, num_ps)
        _check_ranks(told)
        if num_processes == 1:
            return cls.local()
        return _met(told, timeout_secs=timeout_secs, source="`join`")

    @classmethod
    def from_hosts(
        cls,
        *,
        worker_hosts: str | Sequence[str],
        ps_hosts: str | Sequence[str] = "",
        chief_host: str = "",
        job_name: str = "worker",
        task_id: int = 0,
    ) -> "Cluster":
        """Returns the cluster of addresses given by hand: the flags of the TF-Slim scripts.

        Args:
            worker_hosts: "host:port" of each worker, as a list or as text with commas. The same on
                every task, in the same order. Empty if this process trains alone.
            ps_hosts: "host:port" of each parameter server, likewise.
            chief_host: "host:port" of a chief in addition to the workers; parameter servers need
                one.
            job_name: The job of this process: "chief", "worker", "ps" or "evaluator".
            task_id: Index of this process in its job, from 0.

        Raises:
            ValueError: If an address or the task cannot work; the message shows which.
            TypeError: `job_name` is not a str.

        Example:
            ```python
            Cluster.from_hosts(worker_hosts="a:2222,b:2222", task_id=1).task  # worker 1
            ```
        """
        check_text("job_name", job_name)
        jobs = {"chief": _split(chief_host), "worker": _split(worker_hosts), "ps": _split(ps_hosts)}
        with _errors_of(f"from_hosts(job_name={job_name!r}, task_id={task_id!r})"):
            task = Task(job_name, read_index(task_id))
            return cls(jobs={job: hosts for job, hosts in jobs.items() if hosts}, task=task)

    @classmethod
    def local(cls) -> "Cluster":
        """Returns the cluster of a process that is alone: worker 0 of 1.

        Give it to `make_strategy` to ignore TF_CONFIG and Slurm.

        Example:
            ```python
            strategy = kerasdist.make_strategy(cluster=kerasdist.Cluster.local())
            ```
        """
        return cls(jobs={}, task=Task("worker", 0))

    @property
    def addresses(self) -> dict[Task, str]:
        """The address "host:port" of each task of the cluster; the evaluator has none."""
        return addresses_by_task(self.jobs)

    @property
    def num_workers(self) -> int:
        """Workers of the whole job: the processes that train.

        With parameter servers, the chief only coordinates and is not a worker; without, it is one.
        """
        if not self.jobs:
            return 1
        num_workers = len(self.jobs.get("worker", ()))
        return num_workers if self.num_ps else num_workers + len(self.jobs.get("chief", ()))

    @property
    def num_ps(self) -> int:
        """Parameter servers of the whole job."""
        return len(self.jobs.get("ps", ()))

    @property
    def chief(self) -> Task:
        """The task that writes files: the chief, or worker 0 without one."""
        return Task("chief" if "chief" in self.jobs else "worker", 0)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.task == self.chief

    @property
    def worker_index(self) -> int:
        """Position of this process among the workers, from 0.

        The chief is the first of them; with parameter servers it is not a worker and not counted.
        """
        follows_chief = "chief" in self.jobs and not self.num_ps and self.task.job == "worker"
        return self.task.index + (1 if follows_chief else 0)

    @property
    def is_local(self) -> bool:
        """Whether this process is the whole cluster, so it does not connect to any other."""
        return not self.jobs or list(self.addresses) == [self.task]

    def describe(self, task: Task) -> str:
        """Returns a task with its address, for messages: "worker 1 (b:2222)"."""
        return f"{task} ({self.addresses.get(task, 'not in the cluster')})"


def _check_types(cluster: Cluster) -> None:
    if not isinstance(cluster.jobs, Mapping):
        raise TypeError(
            "`jobs` must map each job to its addresses. "
            f'Received: jobs={cluster.jobs!r}. Form: {{"worker": ["host:2222", ...]}}.'
        )
    if not isinstance(cluster.task, Task):
        raise TypeError(
            f"`task` must be a Task. Received: task={cluster.task!r}. "
            'Form: kerasdist.Task("worker", 0).'
        )


def _check_has_workers(cluster: Cluster) -> None:
    if cluster.num_workers == 0:
        raise ValueError(
            f"The cluster has no task that trains. Received: jobs {', '.join(cluster.jobs)}. "
            'Add "worker" to it.'
        )


@contextlib.contextmanager
def _errors_of(source: str) -> Generator[None, None, None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _from_text(environ: Mapping[str, str]) -> Cluster | None:
    for name, read in (("TF_CONFIG", read_tf_config), ("CLUSTER_SPEC", read_cluster_spec)):
        with _errors_of(name):
            config = read(environ[name]) if environ.get(name, "").strip() else None
            if config is not None:
                return _from_tf_config(config, environ, name)
    return None


def _from_tf_config(config: TFConfig, environ: Mapping[str, str], source: str) -> Cluster:
    has_ps = bool(config.jobs.get("ps"))
    if has_ps and "SM_CURRENT_HOST" in environ:
        raise ValueError(
            "SageMaker's parameter_server distribution cannot work: it starts TensorFlow's servers "
            "itself, at these addresses, and runs this program on some of them only. Take its "
            "multi_worker_mirrored_strategy, or no distribution: the hosts then meet by themselves."
        )
    if has_ps and "AZUREML_RUN_ID" in environ and "chief" not in config.jobs:
        raise ValueError(
            "Azure's TensorFlowDistribution with parameter servers cannot work: it starts no "
            f"chief. Received: jobs {', '.join(config.jobs)}. Set its `parameter_server_count` to "
            f"0, or take its PyTorchDistribution, which tells each process its rank, and set "
            f"{environment.NUM_PS}."
        )
    return Cluster(jobs=config.jobs, task=config.task, source=source)


def _from_membership(
    found: Membership, environ: Mapping[str, str], *, timeout_secs: float, waits: bool
) -> Cluster:
    """Returns the cluster of a process that knows its rank; the processes meet once."""
    if found.num_processes == 1:
        return Cluster.local()
    with _errors_of(found.launcher):
        num_ps = _count(environ, environment.NUM_PS)
        told = _Told(found.address, found.rank, found.num_processes, num_ps)
        _check_ranks(told)
        if not found.address:
            raise ValueError(
                f"it has started this process as one of {found.num_processes} ({found.said}), but "
                f"does not say where the first one is. Set {environment.ADDRESS}=host:port on all "
                f"of them: the process of rank 0 listens there. {ALONE_ON_PURPOSE}"
            )
        check_address("the process of rank 0", found.address)
    if not waits:
        addresses = [f"rank-{rank}.invalid:1" for rank in range(found.num_processes)]
        return _of_ranks(addresses, told, found.source)
    try:
        with _errors_of(found.launcher):
            return _met(told, timeout_secs=timeout_secs, source=found.source)
    except ClusterStartError as error:
        known = f"Rank and number are those of {found.source}."
        error.args = (f"{error} {known} {ALONE_ON_PURPOSE}",)
        raise


class _Told(NamedTuple):
    address: str
    rank: int
    num_processes: int
    num_ps: int


def _met(told: _Told, *, timeout_secs: float, source: str) -> Cluster:
    """Returns the cluster of processes that meet, which they do once."""
    if told not in memory.PROCESS.met:
        addresses = meet(
            told.address,
            rank=told.rank,
            num_processes=told.num_processes,
            num_ps=told.num_ps,
            timeout_secs=timeout_secs,
        )
        memory.PROCESS.met[told] = _of_ranks(addresses, told, source)
    return memory.PROCESS.met[told]


def _of_ranks(addresses: Sequence[str], told: _Told, source: str) -> Cluster:
    """Returns the cluster of processes that are numbered: the last ones are parameter servers."""
    jobs, tasks = {}, []
    for number, address in enumerate(addresses):
        is_ps = number >= len(addresses) - told.num_ps
        job = "ps" if is_ps else "chief" if told.num_ps and number == 0 else "worker"
        tasks.append(Task(job, len(jobs.setdefault(job, []))))
        jobs[job].append(address)
    return Cluster(jobs=jobs, task=tasks[told.rank], source=source)


def _check_ranks(told: _Told) -> None:
    _, rank, num_processes, num_ps = told
    if rank >= num_processes:
        raise ValueError(
            "`rank` must be less than `num_processes`; it counts them from 0. Received: "
            f"rank={rank}, num_processes={num_processes}."
        )
    if num_ps and num_processes < num_ps + 2:
        raise ValueError(
            "Parameter servers need a chief and a worker beside them. Received: "
            f"num_processes={num_processes}, num_ps={num_ps}. Start {num_ps + 2} or more."
        )


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    step = read_step(environ)
    if step is None:
        return Cluster.local()
    told = _Told("", step.rank, len(step.addresses), _count(environ, environment.NUM_PS))
    _check_ranks(told)
    return _of_ranks(step.addresses, told, f"Slurm (SLURM_PROCID={step.rank})")


def _warn_of_num_ps(cluster: Cluster, environ: Mapping[str, str]) -> None:
    num_ps = _count(environ, environment.NUM_PS)
    if num_ps != cluster.num_ps and num_ps:
        where = f"{cluster.source} says" if cluster.jobs else "this process is alone, with"
        text = (
            f"{environment.NUM_PS}={num_ps} has no effect: {where} {cluster.num_ps} parameter "
            "servers."
        )
        if memory.PROCESS.say_once(text):
            warn(text)


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "0")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number. Received: {name}={text!r}.")
    return int(text)


def _split(hosts: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(hosts, str):
        return hosts
    return [host.strip() for host in hosts.split(",")] if hosts.strip() else []
