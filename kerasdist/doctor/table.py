"""The check-up: does this machine, with these versions, give the same weights on replicas?

    python -m kerasdist doctor

Every case of the parity table is trained by Keras alone (the truth), on two replicas with stock
Keras, and on two replicas with kerasdist. The batches are even unless the case is about odd ones,
so that each row shows what its title says.
"""

import dataclasses
import math
import os
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kerasdist import parity
from kerasdist.cluster import Cluster
from kerasdist.config import DeploymentConfig
from kerasdist.parity.data import EVEN
from kerasdist.strategies.make_strategy import count_gpus, make_strategy
from kerasdist.support.usage_error import UsageError
from kerasdist.training.trial.tolerances import TRAINED, is_rounding

# The rows of `--quick`: each takes another way through what kerasdist replaces in Keras.
QUICK = (
    "Adam",
    "activity regularizer",
    "global_clipnorm",
    "gradient_accumulation_steps=2",
    "loss reduction: mean_with_sample_weight",
    "last batch of 1 example",
    "tf.data of unknown length",
    "train_on_batch",
    "steps_per_execution=7",
    "BatchNormalization(synchronized=True)",
    "own train_step",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: the difference from one device, as a number or in words."""

    case: str
    tolerance: float
    stock: float | str
    ours: float | str

    @property
    def is_healthy(self) -> bool:
        """Whether kerasdist gives what one device gives."""
        return _is_within(self.ours, self.tolerance)


def examine(*, only: str = "", is_quick: bool = False, markdown: str | None = None) -> int:
    """Examines the cases, prints the table, and returns the exit code: 1 if kerasdist differs.

    Args:
        only: Part of the titles of the cases to examine.
        is_quick: Whether to examine only those of `QUICK`.
        markdown: File that gets the table as well.

    Raises:
        UsageError: No case has such a title, or the file cannot be written.
    """
    titles = [case.name for case in parity.CASES if not is_quick or case.name in QUICK]
    cases = [case for case in parity.CASES if case.name in titles and only in case.name]
    if not cases:
        raise UsageError(f"`--only` matches no row. Received: {only!r}. Rows: {'; '.join(titles)}.")
    if markdown is not None:
        _check_can_write(markdown)  # Now: the table takes minutes.
    start = time.perf_counter()
    print(f"{_versions()}\nLargest difference from one device, on two replicas:\n")
    print(_line("", "stock Keras", "kerasdist"))
    rows = []
    ours, stock = _strategies()
    for case in cases:
        rows.append(_row(case, ours, stock))
        print(_line(rows[-1].case, *_cells(rows[-1])), flush=True)
    sick = [row.case for row in rows if not row.is_healthy]
    print(f"\n{len(rows) - len(sick)} of {len(rows)} rows of kerasdist equal one device", end=" ")
    print(f"({time.perf_counter() - start:.0f} s).")
    if markdown is not None:
        Path(markdown).write_text(_markdown(rows))
        print(f"Written: {markdown}")
    return 1 if sick else 0


def _check_can_write(markdown: str):
    path = Path(markdown)
    reason = ""
    if not markdown:
        reason = "it is empty"
    elif path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "writing there is not allowed"
    if reason:
        raise UsageError(
            f"`--markdown` must name a file that can be written. Received: {markdown!r} ({reason})."
        )


def _strategies():
    on_cpu = count_gpus() < 2
    config = DeploymentConfig(num_clones=2, clone_on_cpu=on_cpu)
    ours = make_strategy(config, cluster=Cluster.local())
    return ours, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"] if on_cpu else None)


def _row(case: parity.Case, ours: tf.distribute.Strategy, stock: tf.distribute.Strategy) -> Row:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = parity.train(case, is_reference=True, num_examples=EVEN)
        return Row(
            case=case.name,
            tolerance=case.tolerance,
            stock=_difference(case, stock, truth),
            ours=_difference(case, ours, truth),
        )


def _difference(
    case: parity.Case, strategy: tf.distribute.Strategy, truth: parity.Outcome
) -> float | str:
    try:
        outcome = parity.train(case, strategy, num_examples=EVEN)
    except Exception as error:  # What plain Keras raises is a finding.  # noqa: BLE001
        return f"fails: {type(error).__name__}"
    if not parity.has_same_steps(outcome, truth):
        return "DIFFERS: lost or extra steps"
    return parity.difference(outcome, truth)


def _cells(row: Row) -> tuple[str, str]:
    return _cell(row.stock, row.tolerance), _cell(row.ours, row.tolerance)


def _cell(value: float | str, tolerance: float) -> str:
    if isinstance(value, str):
        return value
    text = "NaN or infinite" if math.isinf(value) else f"{value:.0e}"
    return text if _is_within(value, tolerance) else f"DIFFERS: {text}"


def _is_within(value: float | str, tolerance: float) -> bool:
    return not isinstance(value, str) and is_rounding(value, tolerance)


def _line(*cells: Any) -> str:
    return f"{cells[0]:<42}{cells[1]:<34}{cells[2]}".rstrip()


def _versions() -> str:
    return (
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras "
        f"{keras.__version__}, {sys.platform}, {count_gpus()} GPUs"
    )


def _markdown(rows: list[Row]) -> str:
    allowed = ", ".join(f"{size:.0e} in {dtype}" for dtype, size in TRAINED.items())
    lines = [
        "# The same weights: measured",
        "",
        "Written by `python -m kerasdist doctor --markdown docs/parity.md`; not edited by hand.",
        f"{_versions()}.",
        "",
        "Largest absolute difference of any weight, metric or history entry from one device, after "
        f"training on two replicas with the same global batches. Allowed: {allowed}.",
        "",
        "| case | stock Keras | kerasdist |",
        "|---|---|---|",
        *(f"| {row.case} | {' | '.join(_cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
