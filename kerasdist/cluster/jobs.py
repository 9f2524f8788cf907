"""Checks the jobs of a cluster: if some of them are wrong, TensorFlow waits forever."""

from collections.abc import Iterable, Mapping, Sequence

from kerasdist.cluster.task import Task
from kerasdist.messages.address import check_address, split_address
from kerasdist.support.checks import check_text
from kerasdist.support.text import did_you_mean

# TensorFlow's strategies accept these in a cluster. An evaluator is a task outside the cluster.
_JOBS = ("chief", "worker", "ps")
_POOLS_OF_VERTEX = (
    "The pools are the names of CLUSTER_SPEC, which Vertex AI sets beside TF_CONFIG: in TF_CONFIG, "
    '"workerpool0" is "chief", "workerpool1" is "worker" and "workerpool2" is "ps".'
)


def check_jobs(jobs: Mapping[str, Sequence[str]]) -> None:
    """Raises a ValueError unless TensorFlow knows the jobs, and their addresses can work."""
    for job, addresses in jobs.items():
        _check_job(job, addresses)
    _check_one_chief(jobs)
    _check_no_address_twice(jobs)


def check_task(task: Task, jobs: Mapping[str, Sequence[str]]) -> None:
    """Raises a ValueError unless this process is in the jobs, or there are none and it is alone."""
    _check_not_master(task.job)
    if jobs:
        _check_task_in_jobs(task, jobs)
    elif task != Task("worker", 0):
        raise ValueError(
            f'{task} needs the "cluster" it belongs to. Received: task "{task}" alone. '
            "Add the cluster, the same on every task, or remove the task to train alone."
        )


def addresses_by_task(jobs: Mapping[str, Sequence[str]]) -> dict[Task, str]:
    """Returns the address of each task, in the order of the jobs."""
    return {
        Task(job, index): address
        for job, addresses in jobs.items()
        for index, address in enumerate(addresses)
    }


def _check_job(job: str, addresses: object) -> None:
    check_text("job", job)
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
        check_address(Task(job, index), address)


def _check_one_chief(jobs: Mapping[str, Sequence[str]]) -> None:
    chiefs = jobs.get("chief", ())
    if len(chiefs) > 1:
        raise ValueError(
            f'A cluster has one chief. Received: chief={list(chiefs)}. Make the others "worker".'
        )


def _check_no_address_twice(jobs: Mapping[str, Sequence[str]]) -> None:
    owners: dict[tuple[str, int], Task] = {}
    for task, address in addresses_by_task(jobs).items():
        host, port = split_address(address)
        # "A:02222" is "a:2222" in another spelling; other names of a host show in the preflight.
        other = owners.setdefault((host.lower(), port), task)
        if other != task:
            raise ValueError(
                f"Every task needs an address of its own. Received: {address!r} for both "
                f"{other} and {task}. Give one of them another port, or list it once."
            )


def _check_task_in_jobs(task: Task, jobs: Mapping[str, Sequence[str]]) -> None:
    # TensorFlow, too, lets any cluster have one evaluator in addition.
    counts = {job: len(addresses) for job, addresses in jobs.items()} | {"evaluator": 1}
    if task.job not in counts:
        raise ValueError(f'Task "{task}" is not in the cluster. {_known_jobs(task.job, counts)}')
    if not 0 <= task.index < counts[task.job]:
        raise ValueError(
            f'"index" must be at least 0 and less than {counts[task.job]}, the number of '
            f'"{task.job}" tasks. Received: index={task.index}.'
        )


def _check_not_master(job: str) -> None:
    if job.lower() == "master":
        raise ValueError(f'TensorFlow 2 has no job "{job}". Use "chief" in "cluster" and "task".')


def _known_jobs(job: str, known: Iterable[str]) -> str:
    if job.startswith("workerpool"):  # Near to "worker", which the first and the third are not.
        return _POOLS_OF_VERTEX
    # TF-Slim's flags are called so: "ps_hosts".
    return f"Jobs: {', '.join(known)}.{did_you_mean(job.removesuffix('_hosts'), known)}"
