"""What a checkpoint that was found means for the `fit` that begins, and how to say it.

Nothing is changed here: `callbacks.Checkpoint` reads the folder and changes the model.
"""

import dataclasses
from collections.abc import Sequence

from kerasdist.checkpoints import variables
from kerasdist.checkpoints.folder import Saved
from kerasdist.support.text import short_list
from kerasdist.training.report.progress_bar import MOST_EPOCHS

# Instead of the step of a checkpoint.
MISSING, UNREADABLE = -1, -2
_OTHER_MODEL = (
    " This process has trained another model there: if this one is to be trained by itself, as "
    "that of another fold is, give it a folder of its own."
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What is known of the `fit` that begins, to be compared with a checkpoint.

    Attributes:
        fit: How many `fit` of this model into this folder have ended in this process.
        epochs: The last one it is to train.
        batch_size: Examples of a global batch; None if it is unknown.
        steps_per_epoch: Steps of an epoch; None if it is unknown.
        num_batches: Of the whole data, which may last several epochs; None if it is unknown.
        variables: `variables.signature_of` of its model.
        other_optimizers: `variables.other_optimizers_of` of its model.
    """

    fit: int
    epochs: int
    batch_size: int | None
    steps_per_epoch: int | None
    num_batches: int | None
    variables: list[list]
    other_optimizers: list[str]


def check_agreement(directory: str, steps: Sequence[int]) -> None:
    """Checks that all workers have found the same checkpoint.

    Args:
        directory: Where they looked.
        steps: That of the newest one, for each worker; `MISSING` or `UNREADABLE` without one.

    Raises:
        RuntimeError: They differ.
    """
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"The workers see different checkpoints in {directory!r}: the newest are of the steps "
            f"{', '.join(map(str, steps))} ({MISSING}: none, {UNREADABLE}: unreadable). Use a "
            "folder that all of them share."
        )


def is_of_earlier_fit(record: dict, training: Training) -> bool:
    """Whether a checkpoint is of a `fit` that ended in this process: there is nothing to resume."""
    return record["fit"] < training.fit


def is_of_later_fit(record: dict, training: Training) -> bool:
    """Whether the `fit` that begins was over in the run that wrote the checkpoint.

    The program may compile the model anew before the later `fit`, which compares the optimizer.
    """
    return record["fit"] > training.fit


def end_of_fit(record: dict, training: Training) -> int | None:
    """Returns the step of the last checkpoint of the `fit` that begins, if it was over before."""
    ends = record.get("ends", ())
    is_known = is_of_later_fit(record, training) and training.fit < len(ends)
    return ends[training.fit] if is_known else None


def has_later_weights(record: dict, training: Training) -> bool:
    """Whether a checkpoint of a later `fit` has weights that the program adds before it."""
    if not is_of_later_fit(record, training):
        return False
    then, now = map(variables.weights_in, (record["variables"], training.variables))
    return bool(variables.differences(then, now))


def history_of(record: dict, training: Training) -> dict:
    """Returns the History of the `fit` that begins and is over; an empty one if it is unknown."""
    if not is_of_later_fit(record, training):
        return record["history"]
    earlier = record.get("earlier_histories", ())
    nothing = {"epoch": [], "history": {}}
    return earlier[training.fit] if training.fit < len(earlier) else nothing


def has_other_optimizer(record: dict, training: Training) -> bool:
    """Whether the optimizer of a checkpoint is not the one of the `fit` that begins.

    It is that of a later `fit`, or a callback compiled the model after the very last step.
    """
    return is_of_later_fit(record, training) or (
        is_over(record, training) and not record["updates"]
    )


def is_over(record: dict, training: Training) -> bool:
    """Whether nothing is left for the `fit` that begins, or less than nothing."""
    if is_of_later_fit(record, training) or record["epoch"] >= training.epochs:
        return True
    has_more_epochs = training.epochs > max(record["epochs"], record["epoch"])
    return record["is_finished"] and not has_more_epochs and not _has_more_data(record, training)


def _has_more_data(record: dict, training: Training) -> bool:
    """Whether the data ran out in the middle of an epoch that is to be trained, and is longer now.

    Data of unknown length is taken to be as long as before.
    """
    if not record["step"] or training.epochs <= record["epoch"]:
        return False
    num_batches, steps_per_epoch = training.num_batches, training.steps_per_epoch
    if num_batches is None or steps_per_epoch is None:
        return False
    num_epochs = record["epoch"] - (record.get("first_epoch") or 0)
    return num_epochs * steps_per_epoch + record["step"] < num_batches


def differences(record: dict, training: Training) -> list[str]:
    """Returns in words why a checkpoint does not belong to the `fit` that begins."""
    then, now = record["variables"], training.variables
    if has_later_weights(record, training):  # That `fit` compares them.
        return []
    if has_other_optimizer(record, training):
        return variables.differences(variables.weights_in(then), variables.weights_in(now))
    found = variables.differences(then, now)
    others = record.get("other_optimizers"), training.other_optimizers
    if all(others) and others[0] != others[1]:  # A train_step may make them later.
        shown = [", ".join(each or ()) for each in others]
        found.append(f"optimizers {shown[0]} in the checkpoint, {shown[1]} now")
    sizes = record.get("batch_size"), training.batch_size
    if None not in sizes and sizes[0] != sizes[1]:
        found.append(f"batch size {sizes[0]} in the checkpoint, {sizes[1]} now")
    return found


def describe_end(saved: Saved, training: Training, directory: str, *, is_of_another: bool) -> str:
    """Returns the line for a training that is over.

    Args:
        saved: Its last checkpoint.
        training: The `fit` that begins.
        directory: The folder of its checkpoints.
        is_of_another: Whether this process has trained another model there.
    """
    record = saved.record
    if is_of_later_fit(record, training):
        later = f"Nothing left to train in this `fit`: {saved.path} is of a later one"
        if has_later_weights(record, training):
            return f"{later}, with other weights, which are restored when that one begins."
        return f"{later}. Until then the model has its weights, and not those of this one."
    num_epochs = record["epoch"] + (record["step"] > 0)
    return (
        f"The training in {directory} is finished: {saved.step} steps, {num_epochs} epochs. "
        "To train longer, ask for more epochs or steps; to start over, use another folder."
        + (_OTHER_MODEL if is_of_another else "")
    )


def describe_resume(saved: Saved, training: Training, *, has_data_state: bool) -> str:
    """Returns the line for a training that goes on."""
    record = saved.record
    data = "The data of this epoch" if has_data_state else "All data"
    of_epochs = f" of {training.epochs}" if training.epochs <= MOST_EPOCHS else ""
    return (
        f"Resumed from {saved.path}: step {saved.step}, epoch {record['epoch'] + 1}{of_epochs}, "
        f"after {record['step']} of its steps. {data} is read again up to that step."
    )


def are_other_rates(first: list[float], now: list[float]) -> bool:
    """Whether learning rates differ; layers may make optimizers only in the first step."""
    return len(first) == len(now) and first != now


def describe_rates(first: list[float], restored: list[float], now: list[float]) -> str:
    """Returns the line for learning rates that `compile` has changed.

    Args:
        first: Those when the training began.
        restored: Those of the checkpoint.
        now: Those with which `fit` was called.
    """
    return (
        f"The training goes on with the learning rate {_listed(restored)} of the checkpoint. "
        f"`compile` sets {_listed(now)} now, and set {_listed(first)} when the training began."
    )


def describe_configuration(saved: Saved, differences: list[str]) -> str:
    """Returns the line for a model that fits the weights, and is another one all the same."""
    return (
        f"The training goes on with another configuration than that of {saved.path}: "
        f"{short_list(differences, 6, separator='; ')}."
    )


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
