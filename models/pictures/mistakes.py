"""The examples that a classifier gets most wrong, and a picture of them."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..files.whole_file import whole_file

_COLUMNS = 6
_MOST_KEPT = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """An example whose likeliest class is the wrong one.

    Args:
        image: float32 [height, width, channels], as the net sees it.
        right: The number of its class.
        said: That of the likeliest class.
        probability: Of the likeliest class.
        right_probability: Of its class.
    """

    image: np.ndarray
    right: int
    said: int
    probability: float
    right_probability: float


class Worst:
    """Keeps the mistakes that give the right class the lowest probability."""

    def __init__(self):
        self._found: list[tuple[float, int, Mistake]] = []
        self._number = 0

    def look_at(self, images: np.ndarray, right: np.ndarray, probabilities: np.ndarray) -> None:
        """Looks at a batch.

        Args:
            images: float32 [batch, height, width, channels].
            right: The right classes, int [batch].
            probabilities: Of all classes, float32 [batch, classes].
        """
        said = np.argmax(probabilities, axis=-1)
        for index in np.flatnonzero(right != said).tolist():
            mistake = Mistake(
                image=images[index],
                right=int(right[index]),
                said=int(said[index]),
                probability=float(probabilities[index, said[index]]),
                right_probability=float(probabilities[index, right[index]]),
            )
            self._number += 1
            # The number decides if probabilities are equal: mistakes cannot be compared.
            entry = (-mistake.right_probability, -self._number, mistake)
            if len(self._found) < _MOST_KEPT:
                heapq.heappush(self._found, entry)
            else:
                heapq.heappushpop(self._found, entry)

    def mistakes(self) -> list[Mistake]:
        """Returns what was kept, the worst first."""
        return [mistake for _, _, mistake in sorted(self._found, reverse=True)]


def write_picture(
    mistakes: Sequence[Mistake], names: Sequence[str], path: Path, *, title: str
) -> None:
    """Writes mistakes to `path`, a .png, in one piece.

    Args:
        mistakes: The worst first.
        names: The names of the classes.
        path: Replaced when the picture is complete.
        title: Above the picture.
    """
    rows = max(1, -(-len(mistakes) // _COLUMNS))
    figure = Figure(figsize=(1.9 * _COLUMNS, 2.4 * rows + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=12)
    for axes in figure.subplots(rows, _COLUMNS, squeeze=False).flat:
        axes.axis("off")
    for axes, mistake in zip(figure.axes, mistakes, strict=False):
        axes.imshow(as_picture(mistake.image), cmap="gray", vmin=0, vmax=1)
        right = f"is {names[mistake.right]} ({mistake.right_probability:.0%})"
        said = f"taken for {names[mistake.said]} ({mistake.probability:.0%})"
        axes.set_title(f"{right}\n{said}", fontsize=8, parse_math=False)
    with whole_file(path) as incomplete:
        figure.savefig(incomplete, dpi=130)


def as_picture(image: np.ndarray) -> np.ndarray:
    """Returns an image from 0 to 1, whatever its preprocessing made of it."""
    low, high = float(image.min()), float(image.max())
    return np.squeeze((image - low) / (high - low or 1.0))
