"""What a process says of itself when it comes to the meeting, and which run it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerasdist.support import environment

_FACTS_OF_THE_RUN = (environment.RUN_ID, environment.RESTART_COUNT)
# What tells two jobs on one machine apart that were given one address. Ranks of Slurm may be the
# tasks of an array, and those set by hand may come from several jobs.
_FACTS_OF_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Participant:
    """What a process says.

    Attributes:
        rank: Which of the processes it is, from 0.
        num_processes: How many there are, as it was told.
        num_ps: How many of them are parameter servers, as it was told: the last ranks.
        address: "host:port" where TensorFlow is to reach it.
        called: The host that it has called, under which rank 0 is known.
        run: What tells its run from others.
    """

    rank: int
    num_processes: int
    num_ps: int
    address: str
    called: str
    run: Mapping[str, str]

    def to_message(self) -> dict[str, Any]:
        """Returns the message that `from_message` reads."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"kerasdist": "join", **content, "run": dict(self.run)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Participant | None":
        """Returns what a process says, or None if it is not what one would say."""
        content: dict[str, Any] = {name: message.get(name) for name in cls.__dataclass_fields__}
        numbers = dict.fromkeys(("rank", "num_processes", "num_ps"), int)
        kinds = {**numbers, "address": str, "called": str, "run": dict}
        if any(not isinstance(content[name], kind) for name, kind in kinds.items()):
            return None
        return cls(**content)


def facts_of_run(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what tells the run of this process from others."""
    names = [*_FACTS_OF_THE_RUN]
    if environment.RANK not in environ:
        names += _FACTS_OF_LAUNCHERS
        is_alone = not {"SLURM_HET_SIZE", "SLURM_ARRAY_JOB_ID"} & environ.keys()
        names += ["SLURM_JOB_ID"] if is_alone else []
    return {name: environ[name] for name in names if name in environ}


def describe_other_run(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Returns what shows that a process belongs to another run; "" if nothing does."""
    for name in sorted({*mine, *theirs}):
        here, there = mine.get(name), theirs.get(name)
        # A launcher may tell some of its processes only.
        is_told = name in _FACTS_OF_THE_RUN or None not in (here, there)
        if here != there and is_told:
            shown = here or "not set", there or "not set"
            return f"it belongs to another run, whose {name} is {shown[0]}, and here {shown[1]}"
    return ""
