"""The picture of a training run: loss and accuracy over the epochs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..files.whole_file import whole_file

_TRAIN_COLOR = "#1f5fa8"
_VALIDATION_COLOR = "#d9661f"


def write_learning_curve(history: Mapping[str, Sequence[float]], path: Path, *, title: str) -> None:
    """Writes the picture to `path`, a .png, in one piece.

    Args:
        history: One value per epoch of "loss" and "accuracy", and of "val_loss" and
            "val_accuracy" if there was validation, as in `keras.callbacks.History`.
        path: Replaced when the picture is complete.
        title: Above the picture.
    """
    # A Figure of its own, without pyplot: no window system, nothing global.
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=13)
    loss, accuracy = figure.subplots(1, 2)
    _plot(loss, history, "loss", better="lower")
    _plot(accuracy, history, "accuracy", better="higher")
    with whole_file(path) as incomplete:
        figure.savefig(incomplete, dpi=150)


def _plot(axes: Axes, history: Mapping[str, Sequence[float]], name: str, *, better: str) -> None:
    epochs = range(1, len(history[name]) + 1)
    axes.plot(epochs, history[name], "o-", color=_TRAIN_COLOR, markersize=4, label="train")
    if f"val_{name}" in history:
        values = history[f"val_{name}"]
        axes.plot(epochs, values, "s-", color=_VALIDATION_COLOR, markersize=4, label="validation")
        axes.annotate(
            f"{values[-1]:.4f}",
            (epochs[-1], values[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            color=_VALIDATION_COLOR,
            va="center",
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{name} ({better} is better)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.08)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right" if better == "lower" else "lower right")
