"""What the agents of a job and their leader say to each other, as messages of JSON."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from kerasdist.cluster import Task
from kerasdist.launcher.command import split_python
from kerasdist.launcher.machine import Attempt, Outcome
from kerasdist.processes.result import TaskResult
from kerasdist.processes.settings import Settings
from kerasdist.support.version import installed_version

_LONGEST = 100

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Greeting:
    """What an agent says of itself when it comes, and what the leader compares with its own.

    Attributes:
        version: Of kerasdist.
        workers: The range of the job, such as "1:4".
        clones: Replicas of each worker.
        program: The command, without the path of Python, which differs from machine to machine.
        machine: The name of its machine.
        process: Its number there.
    """

    version: str
    workers: str
    clones: str
    program: str
    machine: str
    process: str

    @classmethod
    def of_this_process(cls, program: Sequence[str], settings: Settings) -> "Greeting":
        """Returns what this agent says."""
        _, what = split_python(program)
        return cls(
            version=str(installed_version()),
            workers=f"{settings.fewest_workers}:{settings.most_workers}",
            clones=str(settings.num_clones),
            program=" ".join(what or program),
            machine=socket.gethostname(),
            process=str(os.getpid()),
        )

    @classmethod
    def from_message(cls, message: Message) -> "Greeting":
        """Returns what another agent says; what it leaves out is a question mark."""
        return cls(**{name: str(message.get(name, "?")) for name in cls.__dataclass_fields__})

    def to_message(self) -> dict[str, Any]:
        """Returns the message that `from_message` reads."""
        return {"kerasdist": "agent", **asdict(self)}

    def difference(self, leader: "Greeting") -> str:
        """Returns in one sentence how an agent and its leader do not fit together, if so."""
        words = {
            "version": "kerasdist {}",
            "workers": "--workers {}",
            "clones": "--clones {}",
            "program": "the program `{}`",
        }
        for name, said in words.items():
            theirs, ours = getattr(self, name), getattr(leader, name)
            if theirs != ours:
                here, there = (said.format(shorten(each, _LONGEST)) for each in (theirs, ours))
                return (
                    f"The agent on {self.machine} has {here}, and the leader on {leader.machine} "
                    f"{there}. Give all agents of a job the same."
                )
        return ""


def to_start(
    tasks: Sequence[Task], addresses: Mapping[Task, str], attempt: Attempt
) -> dict[str, Any]:
    """Returns the message by which an agent starts tasks."""
    return {
        "kerasdist": "start",
        "tasks": [asdict(task) for task in tasks],
        "addresses": [[asdict(task), address] for task, address in addresses.items()],
        "attempt": asdict(attempt),
    }


def read_start(message: Message) -> tuple[list[Task], dict[Task, str], Attempt]:
    """Returns the arguments of `to_start`."""
    return (
        [Task(**each) for each in message["tasks"]],
        {Task(**task): address for task, address in message["addresses"]},
        Attempt(**message["attempt"]),
    )


def of_end(outcome: Outcome, attempt: Attempt) -> dict[str, Any]:
    """Returns the message by which an agent says how an attempt ended."""
    said = asdict(outcome)
    said["tasks"] = [_of_result(each) for each in outcome.tasks]
    said["root_cause"] = outcome.root_cause and _of_result(outcome.root_cause)
    return {"kerasdist": "ended", "outcome": said, "num_restarts": attempt.num_restarts}


def read_end(message: Message) -> tuple[Outcome, int]:
    """Returns the outcome of `of_end`, and the `num_restarts` of its attempt."""
    said = message["outcome"]
    cause, error = said["root_cause"], said["error"]
    outcome = Outcome(
        tasks=tuple(map(_read_result, said["tasks"])),
        root_cause=_read_result(cause) if cause else None,
        failure=str(said["failure"]),
        error=None if error is None else str(error),
        details=tuple(map(str, said["details"])),
        lost=tuple(Task(**each) for each in said["lost"]),
        unfinished=tuple(Task(**each) for each in said["unfinished"]),
        has_joined=bool(said["has_joined"]),
    )
    return outcome, int(message["num_restarts"])


def _of_result(result: TaskResult) -> dict[str, Any]:
    return {**asdict(result), "log": str(result.log)}


def _read_result(said: Message) -> TaskResult:
    return TaskResult(
        task=Task(**said["task"]),
        exit_code=int(said["exit_code"]),
        was_stopped=bool(said["was_stopped"]),
        log=Path(said["log"]),
    )
