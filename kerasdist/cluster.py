"""What the environment says: the processes of the job, and which of them this one is.

TensorFlow answers some mistakes in TF_CONFIG by waiting for ever, an address listed twice for one.
This module reads TF_CONFIG, Slurm's variables or addresses given by hand, without TensorFlow, and
says at once what is wrong.

    cluster = Cluster.from_env()
    print(f"{cluster.task}, {cluster.num_workers} workers, writes files: {cluster.is_chief}")
"""

import contextlib
import difflib
import functools
import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kerasdist import slurm
from kerasdist.checks import is_int

# What TensorFlow's strategies accept in a cluster. An evaluator is a task beside the cluster.
_JOBS = ("chief", "worker", "ps")

_TASK_FORM = '"task": {"type": "worker", "index": 0}'


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the job.

    Args:
        job: "chief", "worker", "ps" or "evaluator".
        index: Position in its job, from 0.
    """

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job} {self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The processes of the job and their addresses, as this process sees them.

    Usually made by `from_env`; by `from_hosts` or by hand where flags of the program decide.

    Args:
        jobs: "chief", "worker" or "ps" to the addresses "host:port" of its tasks, in the same order
            on every task; kept as read-only tuples. Empty where this process is alone.
        task: This process. An evaluator is in no job: it takes no part in training.

    Raises:
        ValueError: If the jobs, an address or the task cannot work; the message shows which.

    Example:
        ```python
        cluster = Cluster(jobs={"worker": ["a:2222", "b:2222"]}, task=Task("worker", 0))
        cluster.num_workers  # 2
        ```
    """

    jobs: Mapping[str, Sequence[str]] = field(hash=False)  # A mapping has no hash.
    task: Task

    def __post_init__(self) -> None:
        for job, addresses in self.jobs.items():
            _check_job(job, addresses)
        jobs = {job: tuple(addresses) for job, addresses in self.jobs.items()}
        object.__setattr__(self, "jobs", MappingProxyType(jobs))
        _check_one_chief(jobs)
        _check_no_address_twice(jobs)
        _check_has_workers(self)
        _check_task(self.task, jobs)

    def __reduce__(self):
        # A read-only mapping cannot be pickled, and clusters travel to child processes.
        return functools.partial(Cluster, jobs=dict(self.jobs), task=self.task), ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Cluster":
        """Return the cluster that the environment describes, or a local one where it does not.

        TF_CONFIG decides where it is set; else the step where `srun` started this process as one of
        several tasks (see `kerasdist.slurm.read_step` for the ports); else this process is alone.
        TF_CONFIG={} makes every task of an `srun` train alone.

        Keys of TF_CONFIG that cloud launchers add ("environment", "job", "trial", ...) are ignored.

        Args:
            environ: The variables to read.

        Raises:
            ValueError: If TF_CONFIG is not JSON, or the variables describe a cluster that cannot
                work.

        Example:
            ```python
            Cluster.from_env({}).is_local  # True
            ```
        """
        text = environ.get("TF_CONFIG", "")
        with _errors_of("TF_CONFIG" if text.strip() else "Slurm"):
            return _from_tf_config(text) if text.strip() else _from_slurm(environ)

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
        """Return the cluster of addresses given by hand: the flags of the TF-Slim scripts.

        Args:
            worker_hosts: "host:port" of each worker, as a list or as text with commas. The same on
                every task, in the same order. Empty where this process trains alone.
            ps_hosts: "host:port" of each parameter server, likewise.
            chief_host: "host:port" of the chief beside the workers; parameter servers need one.
            job_name: The job of this process: "chief", "worker", "ps" or "evaluator".
            task_id: Index of this process in its job, from 0.

        Raises:
            ValueError: If an address or the task cannot work; the message shows which.

        Example:
            ```python
            Cluster.from_hosts(worker_hosts="a:2222,b:2222", task_id=1).task  # worker 1
            ```
        """
        jobs = {
            "chief": _split(chief_host),
            "worker": _split(worker_hosts),
            "ps": _split(ps_hosts),
        }
        with _errors_of(f"from_hosts(job_name={job_name!r}, task_id={task_id!r})"):
            task = Task(job_name, _read_index(task_id))
            return cls(jobs={job: hosts for job, hosts in jobs.items() if hosts}, task=task)

    @classmethod
    def local(cls) -> "Cluster":
        """Return the cluster of a process that is alone: worker 0 of 1."""
        return cls(jobs={}, task=Task("worker", 0))

    @property
    def addresses(self) -> dict[Task, str]:
        """The address "host:port" of each task of the cluster; the evaluator has none."""
        return _addresses_by_task(self.jobs)

    @property
    def num_workers(self) -> int:
        """Workers of the whole job: the processes that train.

        With parameter servers the chief coordinates and is no worker; without, it is one.
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

        The chief is the first of them; beside parameter servers it is none, and does not count.
        """
        follows_chief = "chief" in self.jobs and not self.num_ps and self.task.job == "worker"
        return self.task.index + (1 if follows_chief else 0)

    @property
    def is_local(self) -> bool:
        """Whether this process is the whole cluster, so that there is nobody to connect to."""
        return not self.jobs or list(self.addresses) == [self.task]

    def describe(self, task: Task) -> str:
        """Return a task with its address, for messages: "worker 1 (b:2222)"."""
        return f"{task} ({self.addresses.get(task, 'not in the cluster')})"


@contextlib.contextmanager
def _errors_of(source: str) -> Generator[None, None, None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _from_slurm(environ: Mapping[str, str]) -> Cluster:
    step = slurm.read_step(environ)
    if step is None:
        return Cluster.local()
    return Cluster(jobs={"worker": step.addresses}, task=Task("worker", step.rank))


def _split(hosts: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(hosts, str):
        return hosts
    return [host.strip() for host in hosts.split(",")] if hosts.strip() else []


def _from_tf_config(text: str) -> Cluster:
    config = _read_json(text)
    _check_keys(config)
    jobs = _read_object(config, "cluster")
    task = _read_task(_read_object(config, "task"))
    # Without a cluster the first process can only be alone; a later one has lost its cluster.
    if not jobs and task in (None, Task("chief", 0), Task("worker", 0)):
        return Cluster.local()
    if task is None:
        raise ValueError(
            f'The "cluster" needs a "task" that says which process this is. Add {_TASK_FORM}, '
            "with another index on every process."
        )
    return Cluster(jobs=jobs, task=task)


def _read_json(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(_describe_json_error(error)) from error
    if not isinstance(config, dict):
        raise ValueError(f'Must be a JSON object with "cluster" and "task". Received: {config!r}.')
    return config


def _describe_json_error(error: json.JSONDecodeError) -> str:
    near = error.doc[max(0, error.pos - 20) : error.pos + 20]
    quotes = " JSON has no single quotes." if error.doc[error.pos : error.pos + 1] == "'" else ""
    return (
        f"Not valid JSON at line {error.lineno} column {error.colno}: {error.msg}. "
        f"Received near there: {near!r}.{quotes} Write it with `json.dumps(...)`."
    )


def _check_keys(config: Mapping[str, Any]) -> None:
    # Launchers add keys of their own, so an unknown key is a mistake only where it looks like one
    # that is missing.
    missing = [key for key in ("cluster", "task") if key not in config]
    for key in config:
        suggestion = _did_you_mean(key, missing)
        if suggestion:
            raise ValueError(
                f'Unknown key "{key}".{suggestion} Form: "cluster": ..., {_TASK_FORM}.'
            )


def _read_object(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f'"{key}" must be a JSON object. Received: {key}={value!r}.')
    return value


def _read_task(task: Mapping[str, Any]) -> Task | None:
    if not task:
        return None
    for key in ("type", "index"):
        if key not in task:
            raise ValueError(f'"task" has no "{key}". Received: task={task!r}. Form: {_TASK_FORM}.')
    if not isinstance(task["type"], str):
        raise ValueError(f'"type" of the task must be text. Received: type={task["type"]!r}.')
    return Task(task["type"], _read_index(task["index"]))


def _read_index(index: object) -> int:
    # Launchers written in shell give the index as text; TensorFlow takes it, so do we.
    try:
        if is_int(index) or isinstance(index, str):
            return int(index)
    except ValueError:
        pass
    raise ValueError(f'"index" of the task must be a whole number. Received: index={index!r}.')


def _check_job(job: str, addresses: object) -> None:
    _check_not_master(job)
    if job == "evaluator":
        raise ValueError(
            'The cluster must not list "evaluator": it takes no part in training. Take it out of '
            '"cluster"; its own process keeps "task": {"type": "evaluator", "index": 0}.'
        )
    if job not in _JOBS:
        raise ValueError(f'Unknown job "{job}" in the cluster. {_known_jobs(job, _JOBS)}')
    if not isinstance(addresses, list | tuple):
        raise ValueError(
            f'The addresses of "{job}" must be a list, in the same order on every task. '
            f'Received: {job}={addresses!r}. Form: ["host:2222", ...].'
        )
    if not addresses:
        raise ValueError(
            f'Job "{job}" has no addresses. Received: {job}=[]. Add some or remove it.'
        )
    for index, address in enumerate(addresses):
        _check_address(Task(job, index), address)


def _check_not_master(job: str) -> None:
    if job == "master":
        raise ValueError('TensorFlow 2 knows no job "master". Use "chief" in "cluster" and "task".')


def _check_address(task: Task, address: object) -> None:
    received = f"Received: {address!r} for {task}."
    if not isinstance(address, str):
        raise ValueError(f'An address must be text like "host:2222". {received}')
    if "://" in address:
        raise ValueError(
            f'An address is "host:port", without a scheme. {received} '
            f'Remove "{address.partition("://")[0]}://".'
        )
    host, colon, port = address.rpartition(":")
    _check_host(host if colon else address, received)
    if not colon:
        raise ValueError(f'The port is missing. {received} Write "{address}:2222".')
    _check_port(port, received)


def _check_host(host: str, received: str) -> None:
    if not host or any(character.isspace() for character in host):
        raise ValueError(f'An address needs a host name or IP, as in "host:2222". {received}')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f'An IPv6 address needs brackets, as in "[::1]:2222". {received}')


def _check_port(port: str, received: str) -> None:
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise ValueError(f"The port must be a number from 1 to 65535. {received}")


def _check_one_chief(jobs: Mapping[str, Sequence[str]]) -> None:
    chiefs = jobs.get("chief", ())
    if len(chiefs) > 1:
        raise ValueError(
            f'A cluster has one chief. Received: chief={list(chiefs)}. Make the others "worker".'
        )


def _check_no_address_twice(jobs: Mapping[str, Sequence[str]]) -> None:
    owners: dict[tuple[str, int], Task] = {}
    for task, address in _addresses_by_task(jobs).items():
        host, _, port = address.rpartition(":")
        # "A:02222" is "a:2222" in another spelling; other names of a host show in the preflight.
        other = owners.setdefault((host.lower(), int(port)), task)
        if other != task:
            raise ValueError(
                f"Every task needs an address of its own. Received: {address!r} for both "
                f"{other} and {task}. Give one of them another port, or list it once."
            )


def _check_has_workers(cluster: Cluster) -> None:
    if cluster.num_workers == 0:
        raise ValueError(
            f"The cluster has nobody to train. Received: jobs {', '.join(cluster.jobs)}. "
            'Add "worker" to it.'
        )


def _check_task(task: Task, jobs: Mapping[str, Sequence[str]]) -> None:
    _check_not_master(task.job)
    if jobs:
        _check_task_in_jobs(task, jobs)
    elif task != Task("worker", 0):
        raise ValueError(
            f'{task} needs the "cluster" it belongs to. Received: task "{task}" alone. '
            "Add the cluster, the same on every task, or remove the task to train alone."
        )


def _check_task_in_jobs(task: Task, jobs: Mapping[str, Sequence[str]]) -> None:
    # As in TensorFlow, there may be one evaluator beside any cluster.
    counts = {job: len(addresses) for job, addresses in jobs.items()} | {"evaluator": 1}
    if task.job not in counts:
        raise ValueError(f'Task "{task}" is not in the cluster. {_known_jobs(task.job, counts)}')
    if not 0 <= task.index < counts[task.job]:
        raise ValueError(
            f'"index" must be at least 0 and less than {counts[task.job]}, the number of '
            f'"{task.job}" tasks. Received: index={task.index}.'
        )


def _addresses_by_task(jobs: Mapping[str, Sequence[str]]) -> dict[Task, str]:
    return {
        Task(job, index): address
        for job, addresses in jobs.items()
        for index, address in enumerate(addresses)
    }


def _known_jobs(job: str, known: Iterable[str]) -> str:
    return f"Jobs: {', '.join(known)}.{_did_you_mean(job, known)}"


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
