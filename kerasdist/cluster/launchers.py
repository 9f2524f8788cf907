"""What launchers tell each process: its rank, how many there are, and where the first one is.

found = read_membership(os.environ)      # None for a process that is alone
found.launcher, found.rank, found.num_processes, found.address
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kerasdist.support import environment

# Where a launcher names a host and no port. Below 12000, where the tasks have theirs.
_FIRST_PORT, _NUM_PORTS = 11_000, 1000
_LONGEST_VALUE = 100
MOST_PROCESSES = 100_000  # Each of them has to know the addresses of all.
_MOST_DIGITS = 18  # More are no number of anything, and Python reads no more than 4300.
_HERE = "127.0.0.1"

_Variables = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """What a process is told.

    Attributes:
        launcher: By whom, for messages.
        said: In which variables, for messages.
        rank: Which of the processes it is, from 0.
        num_processes: How many there are.
        address: "host:port" where the process of rank 0 is to listen; "" where it is not told.
    """

    launcher: str
    said: str
    rank: int
    num_processes: int
    address: str

    @property
    def source(self) -> str:
        """From where this is known, for messages: "torchrun (RANK=1, WORLD_SIZE=2)"."""
        return f"{self.launcher} ({self.said})"


class _Launcher(NamedTuple):
    """A launcher, and the variables in which it says something.

    Attributes:
        name: For messages.
        size: The variable of the number of processes.
        rank: That of the rank.
        host: Returns the host of rank 0; "" if the variables do not say it.
        port: The variable of the port at which rank 0 can listen, alone or behind a host; "" for
            none.
    """

    name: str
    size: str
    rank: str
    host: Callable[[_Variables], str]
    port: str = ""


def read_membership(environ: _Variables, *, is_in_step: bool = False) -> Membership | None:
    """Returns what the launcher of a process has told it; None if that is alone.

    Launchers are nested, as `mpirun` in a job of Slurm, and the innermost counts: of those in the
    table, the first. It may say that the process is alone.

    Args:
        environ: The variables of the process.
        is_in_step: Whether `srun` has started it, or what has: then those alone count that run
            within its steps.

    Raises:
        ValueError: A variable has a form that it cannot have.

    Example:
        read_membership({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}).rank      # 1
    """
    if _number(environ.get(environment.NUM_PROCESSES, ""), name=environment.NUM_PROCESSES) == 1:
        said = f"{environment.NUM_PROCESSES}=1"
        return Membership(
            launcher="the environment", said=said, rank=0, num_processes=1, address=""
        )
    others = () if is_in_step else (*_OTHERS, *_volcano(environ))
    for launcher in (*_WITHIN_STEPS, *others):
        if {launcher.size, launcher.rank} <= environ.keys():
            found = _read(launcher, environ)
            if found is not None:
                return found
    if not is_in_step:
        _check_is_alone(environ)
    return None


def _check_is_alone(environ: _Variables) -> None:
    """Raises a ValueError if the user has said one of what makes a process one of several."""
    size, rank = environment.NUM_PROCESSES, environment.RANK
    if rank in environ and size not in environ:
        raise ValueError(
            f"{rank}={environ[rank]} says which process this is, and nothing how many there are. "
            f"Set {size} as well."
        )
    if _number(environ.get(size, ""), name=size) > 1:
        raise ValueError(
            f"{size}={environ[size]} says how many processes there are, and nothing which of them "
            f"this is. Set {rank}, to another number in each."
        )


def _volcano(environ: _Variables) -> list[_Launcher]:
    """Returns what stands for Volcano: its variables have the name of the task, if it has one."""
    names = [name for name in environ if re.fullmatch(r"VC_.+_NUM", name)]
    if len(names) != 1:
        return []
    hosts = f"{names[0].removesuffix('NUM')}HOSTS"
    return [_Launcher("Volcano", names[0], "VC_TASK_INDEX", _first_of(hosts))]


def _read(launcher: _Launcher, environ: _Variables) -> Membership | None:
    size, rank = environ[launcher.size], environ[launcher.rank]
    hosts = _hosts(size)
    num_processes = len(hosts) if hosts else _number(size, name=launcher.size)
    said = f"{launcher.rank}={_shown(rank)}, {launcher.size}={_shown(size)}"
    number = hosts.index(rank) if rank in hosts else _number(rank, default=-1)
    if num_processes == 0 or (num_processes == 1 and number):  # Somebody else's variable.
        return None
    check_number(num_processes, said)
    if not 0 <= number < num_processes:
        raise ValueError(f"The rank must be from 0 to {num_processes - 1}. Received: {said}.")
    if launcher is _AWS_BATCH:
        number = _rank_behind(number, _number(environ.get("AWS_BATCH_JOB_MAIN_NODE_INDEX", "0")))
    return Membership(
        launcher=launcher.name,
        said=said,
        rank=number,
        num_processes=num_processes,
        address=environ.get(environment.ADDRESS, "") or _address(launcher, environ),
    )


def check_number(num_processes: int, said: str = "") -> None:
    """Raises a ValueError if there are more processes than any machine could list."""
    if num_processes > MOST_PROCESSES:
        told = f" ({said})" if said else ""
        raise ValueError(
            f"A job has at most {MOST_PROCESSES} processes. Received: {num_processes}{told}."
        )


def _address(launcher: _Launcher, environ: _Variables) -> str:
    host = launcher.host(environ)
    if not host:
        return ""
    port = _number(environ.get(launcher.port, "").rpartition(":")[2])
    if not port:
        # Another one in each job, as two may share a machine.
        # AWS Batch's is "id#0", "id#1" on its nodes.
        job = "".join(environ.get(name, "").partition("#")[0] for name in _OF_THE_JOB)
        port = _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS
    elif "TORCHELASTIC_RUN_ID" in environ:  # Its agent listens there itself.
        port = port - 1 if port == 65535 else port + 1
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rank_behind(index: int, main: int) -> int:
    """Returns the rank of a node where that of index `main` is to be the first."""
    return 0 if index == main else index + (index < main)


def _number(text: str, *, default: int = 0, name: str = "") -> int:
    """Returns the number in a variable; of others than our own, a default if it is none."""
    text = text.strip().partition(":")[0]  # torchrun's "2:4" says how many there are at least.
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    if name == environment.NUM_PROCESSES and text:
        raise ValueError(f"{name} must be a whole number. Received: {name}={text!r}.")
    return default


def _hosts(text: str) -> list[str]:
    """Returns the hosts of a list in JSON; none if it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return found if is_list else []


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _from(name: str) -> Callable[[_Variables], str]:
    return lambda environ: environ.get(name, "").strip()


def _first_of(name: str) -> Callable[[_Variables], str]:
    """Returns what reads the first host of a list: in JSON, with commas, or one a line."""

    def first(environ: _Variables) -> str:
        text = environ.get(name, "")
        return next(iter(_hosts(text) or text.replace(",", " ").split()), "")

    return first


def _here_if_all_are(local_size: str, size: str) -> Callable[[_Variables], str]:
    """Returns what gives MASTER_ADDR, or this machine if all processes are on it."""

    def host(environ: _Variables) -> str:
        are_all_here = environ.get(local_size, "") == environ.get(size)
        return environ.get("MASTER_ADDR", "") or (_HERE if are_all_here else "")

    return host


def _host_of_coordinator(environ: _Variables) -> str:
    return environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0].strip("[]")


def _main_of_batch(environ: _Variables) -> str:
    # The main node itself is not told its address; the others know it.
    name = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    is_main = environ.get("AWS_BATCH_JOB_MAIN_NODE_INDEX") == environ["AWS_BATCH_JOB_NODE_INDEX"]
    return environ.get(name, "") or ("0.0.0.0" if is_main else "")


def _first_pod(environ: _Variables) -> str:
    """Returns the name of pod 0 of the same Job in a JobSet, <jobset>-<group>-<job>-0.<jobset>."""
    name, jobset = environ.get("HOSTNAME", ""), environ.get("JOBSET_NAME", "")
    found = re.fullmatch(r"(.+-(\d+)-)\d+", name)
    if not jobset or found is None:
        return ""
    if found[2] != "0":
        raise ValueError(
            f"JOB_COMPLETION_INDEX counts the pods of one Job, and this one, {name}, is of another "
            f"Job of its JobSet than the first. Set {environment.RANK}, or let one Job have all "
            "pods (`replicas: 1`, `completions: ...`)."
        )
    return f"{found[1]}0.{jobset}"


# What tells a job from others that share a machine with it.
_OF_THE_JOB = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "SLURM_JOB_ID", "AWS_BATCH_JOB_ID")

_WITHIN_STEPS = (
    _Launcher(
        "the environment", environment.NUM_PROCESSES, environment.RANK, _from(environment.ADDRESS)
    ),
    _Launcher("torchrun", "WORLD_SIZE", "RANK", _from("MASTER_ADDR"), "MASTER_PORT"),
    _Launcher(
        *("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        _here_if_all_are("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        "MASTER_PORT",
    ),
)
_AWS_BATCH = _Launcher(
    *("AWS Batch", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX", _main_of_batch),
)
_OTHERS = (
    # Their processes learn their ranks alone, and the user says how many there are.
    _Launcher("PMIx", environment.NUM_PROCESSES, "PMIX_RANK", _from(environment.ADDRESS)),
    _Launcher("PALS", environment.NUM_PROCESSES, "PALS_RANKID", _from(environment.ADDRESS)),
    _Launcher("Kubernetes", environment.NUM_PROCESSES, "JOB_COMPLETION_INDEX", _first_pod),
    _Launcher("Volcano", environment.NUM_PROCESSES, "VC_TASK_INDEX", _from(environment.ADDRESS)),
    _Launcher(
        *("mpirun", "PMI_SIZE", "PMI_RANK", _here_if_all_are("MPI_LOCALNRANKS", "PMI_SIZE")),
        "MASTER_PORT",
    ),
    _Launcher(
        *("a TrainJob", "PET_NNODES", "PET_NODE_RANK", _from("PET_MASTER_ADDR")),
        "PET_MASTER_PORT",
    ),
    _Launcher(
        *("a TrainJob", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", _host_of_coordinator),
        "JAX_COORDINATOR_ADDRESS",
    ),
    _Launcher(
        *("SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK"), _first_of("SKYPILOT_NODE_IPS")
    ),
    _Launcher(
        *("Metaflow", "MF_PARALLEL_NUM_NODES", "MF_PARALLEL_NODE_INDEX"),
        _from("MF_PARALLEL_MAIN_IP"),
    ),
    _AWS_BATCH,
    _Launcher("SageMaker", "SM_HOSTS", "SM_CURRENT_HOST", _first_of("SM_HOSTS")),
)
