"""Compare two runs of a program: where they first differ, and by how much."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from kerasdist.comparison.recording import OneStep, Recording, Step
from kerasdist.support.text import counted
from kerasdist.training.trial.tolerances import TRAINED, absolute_differences, is_rounding

_KINDS = ("weight", "optimizer", "log")
_MOST_ROWS = 3  # Shown of what differs.
_PARALLEL = 0.999  # Cosine from which on a change counts as a multiple of another.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """How much one variable or log differs from that of one device.

    Attributes:
        kind: "weight", "optimizer" for one of its variables, or "log".
        name: Path of the variable, name of the log.
        size: Largest absolute difference; infinite if only one is NaN, or only one exists.
        truth: The value of one device at the element that differs most; None if it has none.
        ours: The value of the deployment there.
        factor: How many times the change in this step (of a log, its value) is that of one device;
            None if it is not a multiple of it.
        num_elements: Those of the variable or log.
        relative_change: By how much the changes differ, relative to that of one device.
    """

    kind: str
    name: str
    size: float
    truth: float | None
    ours: float | None
    factor: float | None = None
    num_elements: int = 1
    relative_change: float = 0.0

    @property
    def relative_size(self) -> float:
        """The size; relative to the value of one device if that is above 1."""
        return self.size / max(1.0, abs(self.truth)) if self.truth and self.size else self.size

    def describe(self) -> str:
        """Returns what differs and by how much, in a line."""
        title = f"{self.kind} {self.name}"
        if self.truth is None:
            return f"{title}: is missing in one run, or has another shape"
        return f"{title}: {self.ours:.7g} instead of {self.truth:.7g}, by {self.size:.1e}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of a program, up to the first step after which they differ.

    Attributes:
        differences: In that step: weights first, then optimizers and logs, the largest first. Empty
            if the runs are equal.
        step: That step of one device, or the last one; None if there is none.
        model: Name of the model of that step.
        largest: The largest difference of any variable or log until then.
        num_compared: How many variables and logs that step has.
        other_data_from: The first step with different examples, if there is one.
        began_alike: Whether both began with the same weights by themselves.
        num_steps: The steps of one device, and those of the deployment.
    """

    differences: list[Difference]
    step: Step | None
    model: str
    largest: float
    num_compared: int
    other_data_from: int | None
    began_alike: bool
    num_steps: tuple[int, int]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, and no step is missing."""
        return not self.differences and self.num_steps[0] == self.num_steps[1]

    def describe(self) -> str:
        """Returns what is equal, or the first differences, in words."""
        if self.step is None or (not self.differences and not self.is_equal):
            return "Differs in the number of steps; equal until then."
        if self.is_equal:
            num_variables = len(self.step.weights) + len(self.step.slots)
            return (
                f"{counted(num_variables, 'variable')} and {counted(len(self.step.logs), 'log')}; "
                f"largest difference {self.largest:.1e}"
            )
        first, last = self.step.first, self.step.last
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        num = f"{len(self.differences)} of {self.num_compared} variables and logs"
        rows = [f"  {each.describe()}" for each in self.differences[:_MOST_ROWS]]
        return "\n".join([f"Differs first in {steps}, model '{self.model}': {num}.", *rows])


def compare(truth: Recording | OneStep, ours: Recording | OneStep) -> Comparison:
    """Compares what two runs of a program recorded, step by step."""
    compared: list[Difference] = []
    differences: list[Difference] = []
    step, largest, other_data_from, began_alike = None, 0.0, None, True
    for position in range(min(truth.num_calls, ours.num_calls)):
        step, own_step = truth.step(position), ours.step(position)
        began_alike &= ours.start(own_step.model).was_alike
        if other_data_from is None and _have_other_examples(step, own_step):
            other_data_from = step.first
        compared = list(_compare_step(truth, ours, position))
        largest = max([largest, *(each.size for each in compared)])
        # Relative for values above 1, unlike in the parity table, whose numbers are small.
        tolerance = TRAINED.get(step.dtype, TRAINED["float32"])
        differences = [each for each in compared if not is_rounding(each.relative_size, tolerance)]
        if differences:
            break
    return Comparison(
        differences=sorted(differences, key=lambda each: (_KINDS.index(each.kind), -each.size)),
        step=step,
        model=truth.start(step.model).name if step else "",
        largest=largest,
        num_compared=len(compared),
        other_data_from=other_data_from,
        began_alike=began_alike,
        num_steps=(truth.num_steps, ours.num_steps),
    )


def describe_rounding(exact: Recording, rounded: Recording) -> str:
    """Returns what the weights of a run differ by, at its end, from one with exact messages."""
    position = min(exact.num_calls, rounded.num_calls) - 1
    weights = [each for each in _compare_step(exact, rounded, position) if each.kind == "weight"]
    largest = max(weights, key=lambda each: each.size)
    steps = counted(exact.step(position).last, "step")
    return (
        f"gradients sent as {rounded.allreduce_dtype}: after {steps}, weights differ by up to "
        f"{largest.size:.1e} ({largest.name}) from those of gradients sent as they are, which are "
        "compared below"
    )


def _have_other_examples(truth: Step, ours: Step) -> bool:
    if truth.examples is None or ours.examples is None:
        return False
    return not np.array_equal(np.sort(truth.examples), np.sort(ours.examples))


def _compare_step(
    truth: Recording | OneStep, ours: Recording | OneStep, position: int
) -> Iterator[Difference]:
    for kind in ("weight", "optimizer"):
        before, after = _variables(truth, position, kind)
        own_before, own_after = _variables(ours, position, kind)
        if len(after) == len(own_after):
            # By position: two runs may count the names of their layers differently.
            own_before = dict(zip(after, own_before.values(), strict=False))
            own_after = dict(zip(after, own_after.values(), strict=True))
        for name, value in after.items():
            # Slots may be made for an optimizer that the program never uses.
            if kind == "weight" or name in own_after:
                start = before.get(name, 0)
                # A model that its first step builds has no weights before it.
                own_start = own_before.get(name, start)
                pairs = (start, value), (own_start, own_after.get(name))
                yield _compare_variable(kind, name, *pairs)
    logs, own_logs = truth.step(position).logs, ours.step(position).logs
    for name in {**logs, **own_logs}:
        yield _compare_variable("log", name, (0, logs.get(name)), (0, own_logs.get(name)))


def _variables(recording: Recording | OneStep, position: int, kind: str) -> tuple[dict, dict]:
    """Returns the variables before and after a step; before, nothing if they are unknown."""
    step = recording.step(position)
    for earlier in range(position - 1, -1, -1):
        previous = recording.step(earlier)
        if previous.model == step.model:
            break
    else:
        previous = None
    if kind == "optimizer":
        return previous.slots if previous else {}, step.slots
    return (previous or recording.start(step.model)).weights, step.weights


def _compare_variable(kind: str, name: str, truth: tuple, ours: tuple) -> Difference:
    """Compares pairs of values: before and after a step."""
    if truth[1] is None or ours[1] is None or np.shape(truth[1]) != np.shape(ours[1]):
        return Difference(kind=kind, name=name, size=float("inf"), truth=None, ours=None)
    value, own_value = (np.asarray(after, "float64") for _, after in (truth, ours))
    change, own_change = value - truth[0], own_value - ours[0]
    if value.size == 0:
        return Difference(kind=kind, name=name, size=0.0, truth=None, ours=None)
    sizes = absolute_differences(value, own_value)
    place = np.unravel_index(np.argmax(sizes / np.fmax(1, np.abs(value))), sizes.shape)
    return Difference(
        kind=kind,
        name=name,
        size=float(sizes[place]),
        truth=float(value[place]),
        ours=float(own_value[place]),
        num_elements=value.size,
        factor=_factor(np.ravel(change), np.ravel(own_change)),
        relative_change=_relative_change(change, own_change),
    )


def _factor(truth: np.ndarray, ours: np.ndarray) -> float | None:
    norms = np.linalg.norm(truth) * np.linalg.norm(ours)
    if not np.isfinite(norms) or norms == 0:
        return None
    product = np.dot(truth, ours)
    return float(product / np.dot(truth, truth)) if product / norms > _PARALLEL else None


def _relative_change(truth: np.ndarray, ours: np.ndarray) -> float:
    norm = np.linalg.norm(truth)
    return float(np.linalg.norm(ours - truth) / norm) if norm else float("inf")
