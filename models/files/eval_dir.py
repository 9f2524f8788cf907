"""A directory of evaluations: the results, event files, pictures and the best model."""

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import keras
import tensorflow as tf

from ..usage_error import UsageError
from .whole_file import whole_file

_MEASURE = "Accuracy"


@dataclass(frozen=True, slots=True)
class EvalDir:
    """Where evaluations are written.

    Args:
        path: The directory; made when it is checked.
    """

    path: Path

    @property
    def results(self) -> Path:
        """One line of JSON for each evaluation."""
        return self.path / "evaluations.jsonl"

    @property
    def confusion(self) -> Path:
        """The picture of the confusion matrix."""
        return self.path / "confusion.png"

    @property
    def mistakes(self) -> Path:
        """The picture of the worst mistakes."""
        return self.path / "mistakes.png"

    @property
    def best_model(self) -> Path:
        """The model with the best accuracy."""
        return self.path / "best.keras"

    def check(self) -> None:
        """Makes the directory.

        Raises:
            UsageError: It cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise UsageError(
                f"--eval_dir {str(self.path)!r} cannot be written to: {error}"
            ) from error

    def steps(self) -> set[int]:
        """Returns the steps that have been evaluated."""
        return {each["step"] for each in self._read()}

    def write(self, step: int, results: dict[str, float]) -> None:
        """Adds an evaluation to the results and the event files."""
        line = json.dumps({"step": step, **results, "time": round(time.time(), 3)})
        with self.results.open("a+b") as file:
            file.write(f"{_end_of_torn_line(file)}{line}\n".encode())
        writer = tf.summary.create_file_writer(str(self.path))
        # A training that failed in this process may have left recording switched off.
        with writer.as_default(step), tf.summary.record_if(True):
            for name, value in results.items():
                tf.summary.scalar(f"eval/{name}", value)
        writer.close()

    def is_best(self, step: int) -> bool:
        """Returns whether the evaluation of `step` is recorded, and no other one is as good."""
        found = {each["step"]: each[_MEASURE] for each in self._read()}
        own = found.pop(step, None)
        return own is not None and all(value < own for value in found.values())

    def keep_as_best(self, model: keras.Model) -> None:
        """Saves the model, in one piece."""
        with whole_file(self.best_model) as incomplete:
            model.save(incomplete)

    def _read(self) -> list[dict]:
        if not self.results.is_file():
            return []
        found = []
        for line in self.results.read_bytes().splitlines():
            # Not half a line, left by an evaluation that was killed.
            with contextlib.suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        return [each for each in found if _is_evaluation(each)]


def _is_evaluation(found: Any) -> bool:
    """Whether a line is what `write` has written."""
    return (
        isinstance(found, dict)
        and isinstance(found.get("step"), int)
        and isinstance(found.get(_MEASURE), int | float)
    )


def _end_of_torn_line(file: BinaryIO) -> str:
    """Returns what has to come before the next line: a newline if a kill has left half a line."""
    if not file.seek(0, os.SEEK_END):
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read() == b"\n" else "\n"
