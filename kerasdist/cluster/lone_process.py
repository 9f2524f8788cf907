"""Warns of a process that finds no cluster, although there seem to be others like it.

Each of them would train by itself, as a chief, and write the same files. Nothing fails then, so it
must be said. What tells a process its rank and how many there are needs no warning: see
`launchers`.

    check_is_meant(os.environ)      # warns in pod 1 of an indexed Job
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kerasdist.support import environment, memory
from kerasdist.support.users_line import warn

ALONE_ON_PURPOSE = (
    "If it should train by itself, pass `cluster=kerasdist.Cluster.local()` or set TF_CONFIG={}."
)


def check_launched(environ: Mapping[str, str]) -> None:
    """Raises a ValueError in a task of `python -m kerasdist launch` whose TF_CONFIG is gone."""
    num_tasks = _number(environ.get(environment.NUM_TASKS, ""))
    if num_tasks > 1:
        raise ValueError(
            f"TF_CONFIG is gone: `python -m kerasdist launch` started this process as one of "
            f"{num_tasks} tasks and set TF_CONFIG, but the program, or a program that started it, "
            'has removed it, as in `os.environ.pop("TF_CONFIG", None)`. Each task would train by '
            f"itself. Leave TF_CONFIG as it is. {ALONE_ON_PURPOSE}"
        )


def check_is_meant(environ: Mapping[str, str]) -> None:
    """Warns of a process that trains by itself, although it was started as one of several.

    Args:
        environ: The variables of a process that has neither TF_CONFIG nor a rank among others.
    """
    for each in _LAUNCHERS:
        value = environ.get(each.variable, "")
        count = each.count(environ, value) if value else 0
        if count > 1 and not set(each.unless) & environ.keys():
            told = each.says.format(count=count, said=f"{each.variable}={value}")
            text = f"{told}: it trains by itself, as a chief. {each.remedy} {ALONE_ON_PURPOSE}"
            if memory.PROCESS.say_once(text):
                warn(text)
            return  # Launchers are nested, as `mpirun` in a job of Slurm.


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _number_in(_: Mapping[str, str], value: str) -> int:
    return _number(value)


def _up_to(_: Mapping[str, str], rank: str) -> int:
    """Returns how many processes there are at least, where only the rank of this one is known."""
    return _number(rank) + 1


def _pods_of_volcano(environ: Mapping[str, str], index: str) -> int:
    """Returns how many pods there are, of tasks of several names."""
    names = [name for name in environ if name.startswith("VC_") and name.endswith("_NUM")]
    return max(_up_to(environ, index), sum(_number(environ[name]) for name in names))


class _Launcher(NamedTuple):
    variable: str
    count: Callable[[Mapping[str, str], str], int]
    says: str
    remedy: str
    unless: tuple[str, ...] = ()  # Variables with which it was not this one.


_RANK_ALONE = (
    "{} started this process as one of at least {{count}} ({{said}}), but does not say how many "
    "there are"
)
_SAY_HOW_MANY = (
    f"Set {environment.NUM_PROCESSES}, and {environment.ADDRESS}=host:port where the process of "
    "rank 0 listens, to the same on all, so that they train together."
)
_LAUNCHERS = (
    _Launcher("PMIX_RANK", _up_to, _RANK_ALONE.format("PMIx"), _SAY_HOW_MANY),
    _Launcher("PALS_RANKID", _up_to, _RANK_ALONE.format("PALS"), _SAY_HOW_MANY),
    _Launcher("JOB_COMPLETION_INDEX", _up_to, _RANK_ALONE.format("Kubernetes"), _SAY_HOW_MANY),
    _Launcher(
        "VC_TASK_INDEX",
        _pods_of_volcano,
        "Volcano started this process as one of {count} or more ({said}), but TF_CONFIG is not set",
        "Add `tensorflow: []` to the plugins of its job.",
    ),
    _Launcher(
        "SLURM_NTASKS",
        _number_in,
        "Slurm allocated {count} tasks ({said}), but `srun` did not start this process",
        "Start it with `srun`, as in `srun python train.py`, so that they train together.",
        unless=("SLURM_STEP_NUM_TASKS",),  # `srun` has started it, as the only task of a step.
    ),
)
