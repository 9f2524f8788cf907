"""Warns of a process that finds no cluster, although there seem to be others like it.

Each of them would train by itself, as a chief, and write the same files. Nothing fails then, so it
must be said. What tells a process its rank and how many there are needs no warning: see
`launchers`.

    check_is_meant(os.environ)      # warns in pod 1 of an indexed Job
"""

from collections.abc import Mapping

from kerasdist.support import environment, memory
from kerasdist.support.users_line import warn

ALONE_ON_PURPOSE = (
    "If it should train by itself, pass `cluster=kerasdist.Cluster.local()` or set TF_CONFIG={}."
)

_RANK_ALONE = {
    "PMIx": "PMIX_RANK",
    "PALS": "PALS_RANKID",
    "Kubernetes": "JOB_COMPLETION_INDEX",
    "Volcano": "VC_TASK_INDEX",
}


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
    found = _what_says_of_others(environ)
    if found:
        text = f"{found[0]}: it trains by itself, as a chief. {found[1]} {ALONE_ON_PURPOSE}"
        if memory.PROCESS.say_once(text):
            warn(text)


def _what_says_of_others(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns the innermost launcher that says so, and the way out."""
    numbers = [name for name in environ if name.startswith("VC_") and name.endswith("_NUM")]
    num_pods = sum(_number(environ[name]) for name in numbers)
    if "VC_TASK_INDEX" in environ and num_pods > 1:
        return (
            f"Volcano started this process as one of {num_pods} ({', '.join(numbers)}), but "
            "TF_CONFIG is not set",
            "Add `tensorflow: []` to the plugins of its job.",
        )
    for launcher, variable in _RANK_ALONE.items():
        rank = _number(environ.get(variable, ""))
        if rank > 0:  # The first one cannot know of others.
            at_least = f"as one of at least {rank + 1} ({variable}={rank})"
            return (
                f"{launcher} started this process {at_least}, but does not say how many there are",
                f"Set {environment.NUM_PROCESSES}, and {environment.ADDRESS}=host:port where the "
                "process of rank 0 listens, to the same on all, so that they train together.",
            )
    num_tasks = _number(environ.get("SLURM_NTASKS", ""))
    # `srun` has started it as the only task of a step where it says the tasks of that.
    if num_tasks > 1 and "SLURM_STEP_NUM_TASKS" not in environ:
        return (
            f"Slurm allocated {num_tasks} tasks (SLURM_NTASKS={num_tasks}), but `srun` did not "
            "start this process",
            "Start it with `srun`, as in `srun python train.py`, so that they train together.",
        )
    return None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
