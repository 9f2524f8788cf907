"""A picture of the confusion matrix: which classes are mistaken for which."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ..files.whole_file import whole_file

_MOST_SHOWN = 30  # Classes in the picture.
_MOST_WITH_NUMBERS = 15  # With more classes, the counts are not written into the picture.


def write_picture(counts: np.ndarray, names: Sequence[str], path: Path, *, title: str) -> None:
    """Writes the counts to `path`, a .png, in one piece.

    If there are many classes, only those with the most mistakes are shown.

    Args:
        counts: [classes, classes], a row for each true class.
        names: The names of the classes.
        path: Replaced when the picture is complete.
        title: Above the picture.
    """
    mistakes = counts - np.diag(np.diag(counts))
    shown = np.argsort(-(mistakes.sum(axis=0) + mistakes.sum(axis=1)), kind="stable")
    shown = np.sort(shown[:_MOST_SHOWN])
    if len(shown) < len(counts):
        title += f"\nthe {len(shown)} classes with the most mistakes, of {len(counts)}"
    part = counts[np.ix_(shown, shown)]
    shares = part / np.maximum(counts[shown].sum(axis=1, keepdims=True), 1)

    size = 3.5 + 0.32 * len(shown)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    figure.suptitle(title, fontsize=12)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    labels = [names[number] for number in shown]
    axes.xaxis.set_major_locator(FixedLocator(range(len(shown))))
    axes.yaxis.set_major_locator(FixedLocator(range(len(shown))))
    axes.set_xticklabels(labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticklabels(labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(shown) <= _MOST_WITH_NUMBERS:
        for row, column in zip(*np.nonzero(part), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            text = f"{part[row, column]:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    with whole_file(path) as incomplete:
        figure.savefig(incomplete, dpi=130)
