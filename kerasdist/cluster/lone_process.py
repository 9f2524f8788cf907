"""Warns of a process that finds no cluster, although there seem to be others like it.

Each of them would train by itself, as a chief, and write the same files. Nothing fails then, so it
must be said. Launchers that say how many there are need no warning: see `launchers`.

    check_is_meant(os.environ)      # warns in pod 1 of an indexed Job
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kerasdist.support import environment, memory
from kerasdist.support.users_line import warn

_LONGEST_VALUE = 100
_AT_LEAST = "started this process as one of at least {}"
_ALONE_ON_PURPOSE = (
    "If it should train by itself, pass `cluster=kerasdist.Cluster.local()` or set TF_CONFIG={}."
)
_WAY_TO_A_CLUSTER = (
    f"Set {environment.NUM_PROCESSES}, {environment.RANK} and {environment.ADDRESS}=host:port, "
    "where the process of rank 0 listens, so that they train together."
)


def check_launched(environ: Mapping[str, str]) -> None:
    """Raises a ValueError in a task of `python -m kerasdist launch` whose TF_CONFIG is gone."""
    num_tasks = _number(environ.get(environment.NUM_TASKS, ""))
    if num_tasks > 1:
        raise ValueError(
            f"TF_CONFIG is gone: `python -m kerasdist launch` started this process as one of "
            f"{num_tasks} tasks and set TF_CONFIG, but the program, or a program that started it, "
            'has removed it, as in `os.environ.pop("TF_CONFIG", None)`. Each task would train by '
            f"itself. Leave TF_CONFIG as it is. {_ALONE_ON_PURPOSE}"
        )


def check_is_meant(environ: Mapping[str, str]) -> None:
    """Warns of a process that trains by itself, although it was started as one of several.

    Args:
        environ: The variables of a process that has neither TF_CONFIG nor a rank among others.
    """
    text = next(_others(environ), None)  # Launchers are nested, as `mpirun` in a job of Slurm.
    if text and memory.PROCESS.say_once(text):
        warn(f"{text} {_ALONE_ON_PURPOSE}")


class _Launcher(NamedTuple):
    name: str
    variable: str  # Tells how many processes there are.
    count: Callable[[str], int]
    unless: tuple[str, ...] = ()  # Variables with which it was not.
    says: str = "started this process as one of {}"
    but: str = "TF_CONFIG is not set"
    remedy: str = _WAY_TO_A_CLUSTER


def _others(environ: Mapping[str, str]) -> Iterator[str]:
    for each in _LAUNCHERS:
        text = environ.get(each.variable, "")
        is_it = not set(each.unless) & environ.keys()
        if is_it and (count := each.count(text)) > 1:
            said = f"{each.name} {each.says.format(count)} ({each.variable}={_shown(text)})"
            yield f"{said}, but {each.but}: it trains by itself, as a chief. {each.remedy}"


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _up_to(rank: str) -> int:
    """Returns how many processes there are at least, where only the rank of this one is known."""
    return _number(rank) + 1


def _num_addresses(text: str) -> int:
    spec = _read_json(text)
    pools = spec.get("cluster") if isinstance(spec, dict) else None
    addresses = pools.values() if isinstance(pools, dict) else ()
    return sum(len(each) for each in addresses if isinstance(each, list))


def _read_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # Somebody else's variable.
        return None


_LAUNCHERS = (
    _Launcher("Vertex AI", "CLUSTER_SPEC", _num_addresses),
    # Their processes learn their own rank alone, so that the first of them cannot know.
    _Launcher("mpirun", "PMIX_RANK", _up_to, says=_AT_LEAST),
    _Launcher("mpiexec", "PALS_RANKID", _up_to, says=_AT_LEAST),
    _Launcher("A Job of Kubernetes", "JOB_COMPLETION_INDEX", _up_to, says=_AT_LEAST),
    _Launcher(
        "Slurm",
        "SLURM_NTASKS",
        _number,
        unless=("SLURM_STEP_NUM_TASKS",),  # `srun` has started it, as the only task of a step.
        says="allocated {} tasks",
        but="`srun` did not start this process",
        remedy="Start it with `srun`, as in `srun python train.py`, so that they train together.",
    ),
)
