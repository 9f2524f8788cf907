"""A flag of a legacy program, and a legacy program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from absl import flags


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """What became of a flag.

    Args:
        default: In the legacy program.
        here: Its name here; "" if there is none.
        otherwise: What is done otherwise here, or does its work.
        absent: Why nothing here does its work.
        refused: Why values of it are not there, by the value, of a flag that is.
        anyway: Values, as text, that say what happens here anyway, of a flag that has no name here.
        always: Why the new command has to say it, even if it is not given: what is done here
            without it. The commands themselves load TensorFlow, so their defaults are told here.
    """

    default: Any
    here: str = ""
    otherwise: str = ""
    absent: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    anyway: tuple[str, ...] = ()
    always: str = ""

    @property
    def answer(self) -> str:
        """What to do instead, as the end of a sentence."""
        renamed = f"it is --{self.here}" if self.here else ""
        return "; ".join(filter(None, [renamed, self.otherwise, self.absent]))

    def happens_anyway(self, value: Any) -> bool:
        """Whether a value says what is done here without the flag."""
        return str(value) in self.anyway


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A legacy program.

    Args:
        command: Of this application: "train" is `python -m models.train`.
        flags: Its flags.
        fixed: What it had no flag for, as flags here.
        computed: Returns further flags here, from the values of its own; None leaves one out.
        notes: What is done otherwise whatever the flags say.
    """

    command: str
    flags: Mapping[str, Flag]
    fixed: Mapping[str, Any]
    computed: Callable[[flags.FlagValues], Mapping[str, Any]] = lambda values: {}
    notes: tuple[str, ...] = ()


def same(**defaults: Any) -> dict[str, Flag]:
    """Returns flags that have the same name here, by their legacy defaults."""
    return {name: Flag(default=default, here=name) for name, default in defaults.items()}


def not_default(here: Any, **defaults: Any) -> dict[str, Flag]:
    """Returns flags that have the same name here and another default, which is `here`."""
    return {
        name: Flag(default=default, here=name, always=default_is(here))
        for name, default in defaults.items()
    }


def default_is(value: Any) -> str:
    """Returns what is said of a flag whose default here is `value`."""
    return "here, there is none" if value is None else f"here, it is {value}"


CLUSTER = "TF_CONFIG, a launcher, or --worker_hosts and --ps_hosts say where the other tasks are"
CLONES = "without it, all GPUs of the machine train"
LOGGING = {
    name: Flag(
        default=False,
        otherwise="lines are written to standard error anyway",
        anyway=("True", "False"),
    )
    for name in ("alsologtostderr", "logtostderr")
}
