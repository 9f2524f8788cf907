"""The plan: what a run is going to do, printed before it starts.

In a script, before `fit`:

    print(kerasdist.plan_training(model, global_batch_size=64, num_examples=1437))
"""

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kerasdist.strategies.choice import Choice, gradient_of_update, rule_of_epoch
from kerasdist.support.checks import check_int
from kerasdist.support.text import counted, in_columns

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a training run is going to do; `str(plan)` is the text for the terminal.

    Attributes:
        strategy: Name of the strategy, and why it was chosen.
        devices: Devices of this worker, one replica on each.
        num_workers: Worker tasks.
        num_ps: Parameter server tasks. If there are any, every worker makes its own steps, unless
            `num_to_aggregate` is given.
        num_to_aggregate: Gradients of each update of synchronous workers over parameter servers;
            None for asynchronous ones.
        global_batch_size: Examples of one optimizer step, over all replicas that make it together;
            with parameter servers, of one batch of a worker. None if unknown.
        num_examples: Examples of an epoch, over all workers; None if unknown.
        settings: Further lines, such as the learning rate, by their titles.
        files: Where files go, by what they are.
        warnings: What makes this run differ from one device.

    Raises:
        TypeError, ValueError: A number is not an int or is too small, or there are no devices.

    Example:
        ```python
        print(Plan(strategy="OneDeviceStrategy", devices=("CPU:0",), global_batch_size=32))
        ```
    """

    strategy: str
    devices: tuple[str, ...]
    num_workers: int = 1
    num_ps: int = 0
    num_to_aggregate: int | None = None
    global_batch_size: int | None = None
    num_examples: int | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError(
                f"`devices` must not be empty. Received: devices={self.devices!r}. A plan for the "
                'CPU has devices=("CPU:0",).'
            )
        least = {"num_workers": 1, "num_ps": 0, "num_to_aggregate": 1}
        least |= {"global_batch_size": 1, "num_examples": 1}
        for name, at_least in least.items():
            number = getattr(self, name)
            if number is not None:
                # One of NumPy's, such as the size of a dataset, is as good.
                is_numpys = isinstance(number, numbers.Integral) and not isinstance(number, int)
                check_int(name, int(number) if is_numpys else number, at_least=at_least)

    @property
    def num_replicas(self) -> int:
        """Copies of the model, over all workers."""
        return self.num_workers * len(self.devices)

    @property
    def num_replicas_of_step(self) -> int:
        """Copies of the model that make a step together: those of one asynchronous worker."""
        return len(self.devices) if self.num_ps else self.num_replicas

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of an epoch, the smaller last one included; None if unknown."""
        if not self.num_examples or not self.global_batch_size:
            return None
        return _rounded_up(self.num_examples, _examples_of_step(self))

    def __str__(self) -> str:
        rows = [
            ("strategy", self.strategy),
            ("devices", _devices(self.devices, self.num_workers)),
            ("parameter servers", str(self.num_ps) if self.num_ps else ""),
            ("replicas", counted(self.num_replicas, "copy", "copies") + " of the model"),
            ("batch", _batch(self)),
            ("last batch", _last_batch(self)),
            ("steps per epoch", _steps(self)),
            ("epoch", _epoch(self)),
            *self.settings.items(),
            *self.files.items(),
            *(("note", warning) for warning in self.warnings),
        ]
        rows = [(title, f"{text}") for title, text in rows if text]
        return "\n".join(["Plan", *(f"  {line}" for line in in_columns(rows))])


def plan_deployment(
    choice: Choice, *, global_batch_size: int | None = None, num_examples: int | None = None
) -> Plan:
    """Returns the plan for a choice of strategy, without a model and without TensorFlow.

    Args:
        choice: From `kerasdist.strategies.choose`.
        global_batch_size: Examples of one optimizer step, over all replicas; with parameter
            servers, over those of one worker.
        num_examples: Examples of an epoch, over all workers.
    """
    return Plan(
        strategy=str(choice),
        devices=choice.devices,
        num_workers=choice.num_workers,
        num_ps=choice.num_ps,
        num_to_aggregate=choice.num_to_aggregate,
        global_batch_size=global_batch_size,
        num_examples=num_examples,
    )


def plan_training(
    model: "keras.Model",
    *,
    global_batch_size: int | None = None,
    num_examples: int | None = None,
    callbacks: "Sequence[keras.callbacks.Callback]" = (),
    files: Mapping[str, str] | None = None,
) -> Plan:
    """Returns the plan for a compiled model, with the settings that are really in force.

    Args:
        model: A compiled Keras model, created in the scope of its strategy.
        global_batch_size: Examples of one optimizer step, over all replicas; with parameter
            servers, over those of one worker; None if unknown.
        num_examples: Examples of an epoch, over all workers; None if unknown.
        callbacks: Those that `fit` will get; the plan shows in which order they act on the update.
        files: Where files go, by what they are: {"model": "runs/1/model.keras"}.

    Raises:
        TypeError, ValueError: A number is not an int or is not positive; or the model is not
            compiled.
        RuntimeError: The model, or with parameter servers one of its variables, was created
            outside the scope of one of our strategies.

    Example:
        ```python
        print(kerasdist.plan_training(model, global_batch_size=64, num_examples=1437))
        ```
    """
    # Imported here: the plan of a deployment needs no TensorFlow.
    from kerasdist.plan import training

    return Plan(
        **training.facts(model, callbacks),
        global_batch_size=global_batch_size,
        num_examples=num_examples,
        files=files or {},
    )


def _devices(devices: tuple[str, ...], num_workers: int):
    names = ", ".join(devices)
    return names if num_workers == 1 else f"{names} on each of {num_workers} workers"


def _batch(plan: Plan):
    if not plan.global_batch_size:
        return ""
    text = counted(plan.global_batch_size, "example")
    if plan.num_to_aggregate:
        examples = counted(_examples_of_step(plan), "example")
        gradient = gradient_of_update(plan.num_to_aggregate, num_workers=plan.num_workers)
        text = f"{text}, one worker's; an update has {examples}: the {gradient}"
    elif plan.num_ps:
        text = f"{text}, one worker's step; asynchronous: no worker waits for another"
    num_replicas = plan.num_replicas_of_step
    if num_replicas == 1:
        return text
    largest = _rounded_up(plan.global_batch_size, num_replicas)
    smallest = plan.global_batch_size // num_replicas
    each = f"{largest:,}" if largest == smallest else f"{smallest:,} or {largest:,}"
    return f"{text}{'' if plan.num_ps else ' (global)'}, {each} on each replica"


def _last_batch(plan: Plan):
    if not plan.num_examples or not plan.global_batch_size:
        return ""
    last = plan.num_examples % _examples_of_step(plan)
    if last == 0:
        return "as large as the others"
    number = "its number" if last == 1 else "their number"
    where = " in the last update" if plan.num_to_aggregate else ""
    text = f"{counted(last, 'example')}{where}, weighted by {number}; none dropped"
    empty = 0 if plan.num_to_aggregate else plan.num_replicas_of_step - last
    return text + (f"; {counted(empty, 'replica')} without any" if empty > 0 else "")


def _steps(plan: Plan):
    if not plan.num_examples:
        return ""
    examples = counted(plan.num_examples, "example")
    if not plan.steps_per_epoch:
        return f"not known for {examples} without a batch size"
    return f"{plan.steps_per_epoch:,} for {examples}"


def _epoch(plan: Plan):
    if not plan.num_to_aggregate:
        return ""
    rule = rule_of_epoch(plan.num_to_aggregate, num_workers=plan.num_workers)
    counts = plan.num_to_aggregate < plan.num_workers
    return f"{rule} `stale` in the logs counts these." if counts else rule


def _examples_of_step(plan: Plan) -> int:
    """Returns the examples of an optimizer step; the size of a batch must be known."""
    return (plan.global_batch_size or 0) * (plan.num_to_aggregate or 1)


def _rounded_up(number: int, divisor: int) -> int:
    return -(-number // divisor)  # Exact, where floats are not.
