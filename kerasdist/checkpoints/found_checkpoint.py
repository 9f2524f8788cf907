"""Compares a checkpoint that was found with the `fit` that begins, and says what it means.

Nothing is changed here: `callbacks.Checkpoint` reads the folder and changes the model.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from kerasdist.checkpoints import variables
from kerasdist.checkpoints.saved import Saved
from kerasdist.support.text import short_list
from kerasdist.training.report.progress_bar import MOST_EPOCHS

# A worker that has found no checkpoint, or cannot read it, reports one of these for its step.
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
            f"{', '.join(map(str, steps))} ({MISSING}: none, {UNREADABLE}: unreadable). Remove "
            "those of another training, or use a folder that all of them share."
        )


@dataclasses.dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint beside the `fit` that begins.

    Attributes:
        saved: The checkpoint.
        training: What is known of the `fit`.
    """

    saved: Saved
    training: Training

    @property
    def record(self) -> dict[str, Any]:
        """What the checkpoint says of itself."""
        return self.saved.record

    @property
    def is_of_earlier_fit(self) -> bool:
        """Whether it is of a `fit` that ended in this process: there is nothing to resume."""
        return self.record["fit"] < self.training.fit

    @property
    def is_of_later_fit(self) -> bool:
        """Whether the `fit` that begins was over in the run that wrote the checkpoint.

        The program may compile the model anew before the later `fit`, which compares the optimizer.
        """
        return self.record["fit"] > self.training.fit

    @property
    def end_of_fit(self) -> int | None:
        """The step of the last checkpoint of the `fit` that begins, if it was over before."""
        return self._of_this_fit("ends", None)

    @property
    def history(self) -> dict[str, Any]:
        """The History of the `fit` that begins and is over; an empty one if it is unknown."""
        if not self.is_of_later_fit:
            return self.record["history"]
        return self._of_this_fit("earlier_histories", {"epoch": [], "history": {}})

    def _of_this_fit(self, entry: str, default: Any) -> Any:
        """Returns what a checkpoint of a later `fit` lists of the one that begins."""
        listed = self.record.get(entry, ())
        is_known = self.is_of_later_fit and self.training.fit < len(listed)
        return listed[self.training.fit] if is_known else default

    @property
    def has_later_weights(self) -> bool:
        """Whether it is of a later `fit`, with weights that the program adds before that one."""
        return self.is_of_later_fit and bool(self._differences_of_weights())

    @property
    def has_other_optimizer(self) -> bool:
        """Whether its optimizer is not the one of the `fit` that begins.

        It is that of a later `fit`, or a callback compiled the model after the very last step.
        """
        return self.is_of_later_fit or (self.is_over and not self.record["updates"])

    @property
    def is_over(self) -> bool:
        """Whether nothing is left for the `fit` that begins, or less than nothing."""
        record, epochs = self.record, self.training.epochs
        if self.is_of_later_fit or record["epoch"] >= epochs:
            return True
        has_more_epochs = epochs > max(record["epochs"], record["epoch"])
        return record["is_finished"] and not has_more_epochs and not self._has_more_data()

    def _has_more_data(self) -> bool:
        """Whether the data ran out amid an epoch that is to be trained, and is longer now.

        Data of unknown length is taken to be as long as before.
        """
        record, training = self.record, self.training
        if not record["step"] or training.epochs <= record["epoch"]:
            return False
        if training.num_batches is None or training.steps_per_epoch is None:
            return False
        num_epochs = record["epoch"] - (record.get("first_epoch") or 0)
        return num_epochs * training.steps_per_epoch + record["step"] < training.num_batches

    def differences(self) -> list[str]:
        """Returns in words why it does not belong to the `fit` that begins."""
        record, training = self.record, self.training
        if self.has_later_weights:  # That `fit` compares them.
            return []
        if self.has_other_optimizer:
            return self._differences_of_weights()
        found = variables.differences(record["variables"], training.variables)
        others = record.get("other_optimizers"), training.other_optimizers
        if all(others) and others[0] != others[1]:  # A train_step may make them later.
            shown = [", ".join(each or ()) for each in others]
            found.append(f"optimizers {shown[0]} in the checkpoint, {shown[1]} now")
        sizes = record.get("batch_size"), training.batch_size
        if None not in sizes and sizes[0] != sizes[1]:
            found.append(f"batch size {sizes[0]} in the checkpoint, {sizes[1]} now")
        return found

    def _differences_of_weights(self) -> list[str]:
        both = self.record["variables"], self.training.variables
        return variables.differences(*map(variables.weights_in, both))

    def describe_end(self, directory: str, *, is_of_another: bool) -> str:
        """Returns the line for a training that is over, of which it is the last checkpoint.

        Args:
            directory: The folder of its checkpoints.
            is_of_another: Whether this process has trained another model there.
        """
        if self.is_of_later_fit:
            later = f"Nothing left to train in this `fit`: {self.saved.path} is of a later one"
            if self.has_later_weights:
                return f"{later}, with other weights, which are restored when that one begins."
            return f"{later}. Until then the model has its weights, and not those of this one."
        num_epochs = self.record["epoch"] + (self.record["step"] > 0)
        return (
            f"The training in {directory} is finished: {self.saved.step} steps, {num_epochs} "
            "epochs. To train longer, ask for more epochs or steps; to start over, use another "
            f"folder.{_OTHER_MODEL if is_of_another else ''}"
        )

    def describe_resume(self) -> str:
        """Returns the line for a training that goes on."""
        epochs, record = self.training.epochs, self.record
        of_epochs = f" of {epochs}" if epochs <= MOST_EPOCHS else ""
        return (
            f"Resumed from {self.saved.path}: step {self.saved.step}, epoch "
            f"{record['epoch'] + 1}{of_epochs}, after {record['step']} of its steps."
        )

    def describe_configuration(self, differences: list[str]) -> str:
        """Returns the line for a model that fits the weights, and is another one all the same."""
        return (
            f"The training goes on with another configuration than that of {self.saved.path}: "
            f"{short_list(differences, 6, separator='; ')}."
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


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
