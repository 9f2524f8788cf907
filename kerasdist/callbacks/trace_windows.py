"""Chooses which steps of a `fit` get a trace of their own, and says why others got none."""

import itertools
import numbers
import sys
from collections.abc import Iterable
from typing import Any

from kerasdist.support.text import short_list

# So many of the steps with the same reason are named.
_MOST_NAMED = 5


class Windows:
    """The windows of steps that are recorded.

    Args:
        at_steps: The first steps of the windows, in rising order.
        every_steps: A window at every multiple of this instead.
    """

    def __init__(self, *, at_steps: tuple[int, ...] | None, every_steps: int | None):
        self._at_steps, self._every_steps = at_steps or (), every_steps
        self._recorded: list[tuple[int, int]] = []  # The first and the last step of each.
        self._explained: set[int] = set()
        self._begin = 0

    def begin_fit(self, num_updates: int, *, is_resumed: bool) -> None:
        """Notes that a `fit` begins after so many updates, perhaps as one that was interrupted."""
        self._begin = num_updates
        if is_resumed:
            self._explained |= {step for step in self._at_steps if step <= num_updates}

    def next_after(self, num_updates: int) -> int:
        """Returns the first step of the next window, after so many updates."""
        if self._every_steps is not None:
            return (num_updates // self._every_steps + 1) * self._every_steps
        return next((step for step in self._at_steps if step > num_updates), sys.maxsize)

    def note(self, first: int, last: int) -> None:
        """Notes that a window was recorded, from step `first` to `last`."""
        self._recorded.append((first, last))
        self._explained.add(first)

    def note_explained(self, first: int) -> None:
        """Notes that the user knows of a window that there is none."""
        self._explained.add(first)

    def left_out(self, num_updates: int) -> str:
        """Returns which of `at_steps` have no trace of their own, and why; "" if all have one.

        Args:
            num_updates: Those at the end of the `fit`.
        """
        steps = [step for step in self._at_steps if step not in self._explained]
        self._explained.update(steps)
        groups = itertools.groupby(steps, lambda step: self._reason(step, num_updates))
        return "; ".join(f"{short_list(found, _MOST_NAMED)} ({reason})" for reason, found in groups)

    def _reason(self, step: int, num_updates: int) -> str:
        for first, last in self._recorded:
            if first <= step <= last:
                return f"in the trace of step {first}"
        if step > num_updates:
            return f"`fit` ended after step {num_updates}"
        if step <= self._begin:
            return f"`fit` began after step {self._begin}"
        return "made in one call with other steps"


def checked(at_steps: Iterable[int]) -> tuple[int, ...]:
    """Returns the steps.

    Raises:
        TypeError: They are not several.
        ValueError: They are not rising ints from 1 on.
    """
    if not isinstance(at_steps, Iterable):
        raise TypeError(
            f"`at_steps` must be a list of ints. Received: at_steps={at_steps!r}. A single step "
            "is given as [60]."
        )
    steps = list(at_steps)
    are_rising = all(first < second for first, second in itertools.pairwise(steps))
    if not steps or not all(map(_is_int, steps)) or steps[0] < 1 or not are_rising:
        raise ValueError(f"`at_steps` must be rising ints from 1 on. Received: at_steps={steps}.")
    return tuple(map(int, steps))


def _is_int(step: Any) -> bool:
    # Those of `np.arange` are ints, too.
    return isinstance(step, numbers.Integral) and not isinstance(step, bool)
