"""Record what a run of a program does, one file for each step: no two need be in memory.

    recording = Recording(folder)
    recording.start(0).weights, recording.step(0).logs["loss"]

A run writes them itself, with `write`; each worker has a folder of its own.
"""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.strategies import Choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """A model before its first step.

    Attributes:
        name: Of the model.
        weights: Arrays by the paths of the variables.
        was_alike: Whether the weights already were those of the truth.
    """

    name: str
    weights: dict[str, np.ndarray]
    was_alike: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One call of a train function: a step, or `steps_per_execution` of them.

    Attributes:
        first: Number of the first step, counted from 1 over the whole program.
        last: Number of the last step.
        model: Which model: its position among all, in the order of their first steps.
        weights: Arrays by the paths of the variables; means over the replicas of this worker.
        slots: The variables of the optimizers, in the same way.
        logs: Floats or arrays by their names.
        examples: uint32 [examples], a fingerprint of each; None if they were not seen.
        draws: The parts of the model in which random numbers were drawn.
        unsynchronized: Layers whose batch statistics are those of each replica.
        dtype: The dtype in which the model computes.
        has_own_step: Whether the model has a train_step of its own.
    """

    first: int
    last: int
    model: int
    weights: dict[str, np.ndarray]
    slots: dict[str, np.ndarray]
    logs: dict[str, Any]
    examples: np.ndarray | None
    draws: tuple[str, ...] = ()
    unsynchronized: tuple[str, ...] = ()
    dtype: str = "float32"
    has_own_step: bool = False


class Recording:
    """What the processes of one run wrote.

    Args:
        folder: With a folder for each process.
    """

    def __init__(self, folder: Path):
        self._folders = sorted(path for path in folder.iterdir() if path.is_dir())

    @property
    def deployment(self) -> Choice | None:
        """What the program asked for; None if it never called `make_strategy`."""
        return self._read("deployment")[0] if self._exist("deployment") else None

    @property
    def needs_strategy(self) -> str:
        """What in the program needs one of our strategies; mostly nothing."""
        return self._read("needs_strategy")[0] if self._exist("needs_strategy") else ""

    @property
    def allreduce_dtype(self) -> str | None:
        """As which dtype workers sent their gradients; None for their own."""
        return self._read("allreduce_dtype")[0] if self._exist("allreduce_dtype") else None

    @property
    def warnings(self) -> list[str]:
        """What kerasdist warned of, on any process."""
        paths = [path for each in self._folders for path in sorted(each.glob("warning-*"))]
        return list(dict.fromkeys(pickle.loads(path.read_bytes()) for path in paths))

    @property
    def num_calls(self) -> int:
        """How many `Step`s there are, on every process."""
        return min((len(list(each.glob("step-*"))) for each in self._folders), default=0)

    @property
    def num_steps(self) -> int:
        """How many training steps that were."""
        return self.step(self.num_calls - 1).last if self.num_calls else 0

    def start(self, model: int) -> Start:
        """Returns how a model was before its first step."""
        return self._read(f"start-{model}")[0]

    def has_start(self, model: int) -> bool:
        """Whether there is such a model."""
        return self._exist(f"start-{model}")

    def step(self, index: int) -> Step:
        """Returns a call of a train function, put together from all workers."""
        steps = self._read(f"step-{index:06}")
        return dataclasses.replace(
            steps[0],
            weights=_mean([step.weights for step in steps]),
            slots=_mean([step.slots for step in steps]),
            examples=_together([step.examples for step in steps]),
        )

    def _exist(self, name: str) -> bool:
        return bool(self._folders) and all((each / name).exists() for each in self._folders)

    def _read(self, name: str) -> list[Any]:
        return [pickle.loads((each / name).read_bytes()) for each in self._folders]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStep:
    """A single step, as a recording that was never written.

    Attributes:
        before: The model before it.
        after: The model after it.
    """

    before: Start
    after: Step
    num_calls: int = 1
    num_steps: int = 1

    def start(self, _: int) -> Start:
        """Returns how the model was before the step."""
        return self.before

    def step(self, _: int) -> Step:
        """Returns the step."""
        return self.after


def write(folder: Path, name: str, record: object) -> None:
    """Adds a record to those of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(record))


def _mean(workers: list[dict]) -> dict:
    if len(workers) == 1:
        return workers[0]
    return {name: np.mean([each[name] for each in workers], axis=0) for name in workers[0]}


def _together(workers: list) -> np.ndarray | None:
    """Returns the examples of all workers: the same on all of them, or parts."""
    first = workers[0]
    if any(each is None for each in workers):
        return None
    if all(np.array_equal(each, first) for each in workers):
        return first
    return np.concatenate(workers)
