"""Reads which processes `srun` has started from the variables of its step.

In its own file, so that `Cluster` need not know how Slurm writes lists of hosts.

    step = read_step(os.environ)      # None outside of `srun`, and for a single task
    step.addresses, step.rank         # ("n1:12704", "n1:12705", "n2:12704"), 2
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kerasdist.cluster.launchers import MOST_PROCESSES, check_number

# Below 32768, where Linux begins to hand out ports to outgoing connections.
_FIRST_PORT = 12000
_PORTS_PER_JOB = 32
_JOBS_APART = 640

_NUMBER = r"\d{1,18}"
_RANGES = rf"\[{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*\]"
_HOSTS = rf"(?:[^\s,\[\]]|{_RANGES})+"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The tasks of one `srun`.

    Attributes:
        addresses: "host:port" of every task, by rank.
        rank: Which of them this process is.
    """

    addresses: tuple[str, ...]
    rank: int


def read_step(environ: Mapping[str, str]) -> Step | None:
    """Returns the tasks of the `srun` that started this process.

    Tasks are numbered along the list of nodes, as `srun` does it by default
    (`--distribution=block`). The first task of a node gets the port
    12000 + 32 * (SLURM_JOB_ID modulo 640), and the next tasks of the node get the ports after it.
    So two jobs can share a node, unless their ids differ by a multiple of 640 or one has more than
    32 tasks on the node; two steps of one job cannot run on a node at the same time.

    Args:
        environ: The variables to read: SLURM_PROCID, SLURM_JOB_ID, SLURM_STEP_NUM_TASKS,
            SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE, and SLURMD_NODENAME if it is set.

    Returns:
        The tasks, or None outside of `srun` and if it started only one task.

    Raises:
        ValueError: A variable is missing or contradicts the others; the message shows it.

    Example:
        step = read_step(os.environ)
        print(step.addresses[step.rank] if step else "alone")
    """
    if _read_number(environ, "SLURM_STEP_NUM_TASKS", default="1") <= 1:
        return None
    hosts = _host_of_every_task(environ)
    rank = _read_number(environ, "SLURM_PROCID")
    _check_rank(rank, hosts, environ)
    first_port = _first_port(_read_number(environ, "SLURM_JOB_ID"))
    return Step(addresses=tuple(_addresses(hosts, first_port)), rank=rank)


def is_step(environ: Mapping[str, str]) -> bool:
    """Whether `srun` has started this process, or what has, as one of several tasks."""
    return environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


def _read_number(environ: Mapping[str, str], name: str, *, default: str | None = None) -> int:
    value = _read(environ, name, default=default)
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise ValueError(f"{name} must be a whole number. Received: {name}={value!r}.")
    return int(value)


def _read(environ: Mapping[str, str], name: str, *, default: str | None = None) -> str:
    value = environ.get(name, default)
    if value is None:
        raise ValueError(
            f"{name} is not set, though SLURM_STEP_NUM_TASKS says that `srun` started this "
            "process. Pass srun's variables on to it, or set TF_CONFIG={} to train alone."
        )
    return value


def _host_of_every_task(environ: Mapping[str, str]) -> list[str]:
    nodes = expand_hosts(_read(environ, "SLURM_STEP_NODELIST"))
    counts = expand_counts(_read(environ, "SLURM_STEP_TASKS_PER_NODE"))
    num_tasks = _read_number(environ, "SLURM_STEP_NUM_TASKS")
    check_number(num_tasks)
    if len(nodes) != len(counts) or sum(counts) != num_tasks:
        raise ValueError(
            "The variables of the step contradict each other. Received: "
            f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']} ({len(nodes)} nodes), "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} ({len(counts)} "
            f"nodes, {sum(counts)} tasks), SLURM_STEP_NUM_TASKS={num_tasks}. "
            "Unset those that are left over from another step."
        )
    return [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]


def expand_hosts(text: str) -> list[str]:
    """Returns the hosts of a list in Slurm's form, in its order.

    Args:
        text: Names with ranges in brackets, such as "n[08-10,12],m5".

    Raises:
        ValueError: The text has another form.

    Example:
        expand_hosts("n[08-10],m5")      # ["n08", "n09", "n10", "m5"]
    """
    if not re.fullmatch(rf"{_HOSTS}(?:,{_HOSTS})*", text):
        raise ValueError(f"Not a list of hosts. Received: SLURM_STEP_NODELIST={text!r}.")
    hosts = (host for part in re.findall(_HOSTS, text) for host in _expand_ranges(part))
    return list(itertools.islice(hosts, MOST_PROCESSES + 1))


def _expand_ranges(part: str) -> Iterator[str]:
    # The text outside of brackets, and inside, by turns: "n", "1-2", "-ib".
    pieces = re.split(r"\[(.*?)\]", part)
    choices = [_numbers(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ("".join(choice) for choice in itertools.product(*choices))


def _numbers(ranges: str) -> list[str]:
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        # Leading zeros are a part of the names.
        named = range(int(first), int(last or first) + 1)[: MOST_PROCESSES + 1]
        numbers += [f"{n:0{len(first)}}" for n in named]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Returns the number of tasks on each node.

    Args:
        text: Numbers in Slurm's form; "2(x3)" stands for "2,2,2".

    Raises:
        ValueError: The text has another form.

    Example:
        expand_counts("3(x2),1")      # [3, 3, 1]
    """
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?", part)
        if match is None:
            raise ValueError(f"Not tasks per node. Received: SLURM_STEP_TASKS_PER_NODE={text!r}.")
        counts += [int(match[1])] * min(int(match[2] or 1), MOST_PROCESSES + 1)
    return counts


def _check_rank(rank: int, hosts: list[str], environ: Mapping[str, str]) -> None:
    if rank >= len(hosts):
        raise ValueError(
            f"SLURM_PROCID must be less than SLURM_STEP_NUM_TASKS={len(hosts)}. "
            f"Received: SLURM_PROCID={rank}."
        )
    here = environ.get("SLURMD_NODENAME", hosts[rank])
    if here != hosts[rank]:
        raise ValueError(
            f"Task {rank} should run on {hosts[rank]} if tasks are numbered along the nodes. "
            f"Received: SLURM_PROCID={rank}, SLURMD_NODENAME={here}. "
            "Start it with `srun --distribution=block`."
        )


def _first_port(job_id: int) -> int:
    return _FIRST_PORT + _PORTS_PER_JOB * (job_id % _JOBS_APART)


def _addresses(hosts: Iterable[str], first_port: int) -> Iterator[str]:
    for host, tasks in itertools.groupby(hosts):
        for offset, _ in enumerate(tasks):
            yield f"{host}:{first_port + offset}"
