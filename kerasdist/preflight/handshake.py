"""The handshake of two tasks before they start, and how they are compared."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from kerasdist.cluster import Cluster
from kerasdist.support import environment

# If these differ, the other task belongs to another run and is not part of this cluster.
_FACTS_OF_THE_RUN = (environment.RUN_ID, environment.RESTART_COUNT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Handshake:
    """What one task says about itself.

    Attributes:
        task: Its name, such as "worker 1".
        addresses: The address of every task, as this one has been told.
        facts: What has to be the same on every task, such as the version of Keras.
    """

    task: str
    addresses: Mapping[str, str]
    facts: Mapping[str, str]

    @classmethod
    def of(cls, cluster: Cluster, facts: Mapping[str, str]) -> "Handshake":
        """Returns what this process says.

        Args:
            cluster: The tasks, and which one this is.
            facts: What has to be the same; to them comes which run this process belongs to.
        """
        run = {name: os.environ[name] for name in _FACTS_OF_THE_RUN if name in os.environ}
        return cls(
            task=str(cluster.task),
            addresses={str(task): address for task, address in cluster.addresses.items()},
            facts={name: str(value) for name, value in {**run, **facts}.items()},
        )

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Handshake | None":
        """Returns what another process says, or None if it is not what a task would say."""
        task, addresses, facts = (message.get(key) for key in ("task", "addresses", "facts"))
        if not (isinstance(task, str) and _is_table(addresses) and _is_table(facts)):
            return None
        return cls(task=task, addresses=addresses, facts=facts)

    def to_message(self) -> dict[str, Any]:
        """Returns the message that `from_message` reads."""
        return {
            "kerasdist": "hello",
            "task": self.task,
            "addresses": dict(self.addresses),
            "facts": dict(self.facts),
        }

    def name(self, task: str) -> str:
        """Returns a task with its address, for messages."""
        return f"{task} ({self.addresses.get(task, 'not in the cluster')})"


def describe_other_run(mine: Handshake, theirs: Handshake) -> str:
    """Returns what shows that another task belongs to another run; "" if it does not."""
    for fact in _FACTS_OF_THE_RUN:
        here, there = _values(mine, theirs, fact)
        if here != there:
            return f"a task of another run answers, with {fact}={there} instead of {here}"
    return ""


def describe_differences(mine: Handshake, theirs: Handshake, *, expected: str) -> list[str]:
    """Returns what keeps two tasks from training together, one sentence each.

    Args:
        mine: What this task says.
        theirs: What the task says that answered.
        expected: The task at whose address it answered.
    """
    me, other = mine.name(mine.task), mine.name(expected)
    if theirs.addresses != mine.addresses:
        return [_describe_other_cluster(mine, theirs, me, other)]  # The rest follows from it.
    if theirs.task != expected:
        return [
            f"{theirs.task} answers at the address of {other}: its process was given the wrong "
            "index, or the two addresses are one."
        ]
    values = {fact: _values(mine, theirs, fact) for fact in sorted({*mine.facts, *theirs.facts})}
    return [
        f"{fact} is {here} on {me} and {there} on {other}."
        for fact, (here, there) in values.items()
        if here != there
    ]


def _values(mine: Handshake, theirs: Handshake, fact: str) -> tuple[str, str]:
    return mine.facts.get(fact, "not given"), theirs.facts.get(fact, "not given")


def _describe_other_cluster(mine: Handshake, theirs: Handshake, me: str, other: str) -> str:
    tasks = [*mine.addresses, *theirs.addresses]
    task = next(task for task in tasks if mine.addresses.get(task) != theirs.addresses.get(task))
    here, there = mine.addresses.get(task, "no task"), theirs.addresses.get(task, "no task")
    return (
        f"The clusters differ: {task} is {here} on {me} and {there} on {other}. Every task needs "
        "the same addresses in the same order."
    )


def _is_table(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
