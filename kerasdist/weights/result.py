"""Says what a warm start did."""

import dataclasses
from collections.abc import Mapping

from kerasdist.support.text import counted, short_list


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """What `warm_start` did; as a str, what it prints.

    Attributes:
        source: Where the values came from.
        restored: The names in the source, by the paths of the variables that got their values.
        left_alone: Paths of variables that `include` and `exclude` left out.
        missing: Paths of variables that the source has nothing for.
        unused: Names in the source that belong to no variable.
    """

    source: str
    restored: Mapping[str, str]
    left_alone: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        number = counted(len(self.restored), "variable")
        lines = [f"Warm start from {self.source}: {number} restored"]
        for title, names in (
            ("left alone", self.left_alone),
            ("missing in the source", self.missing),
            ("unused in the source", self.unused),
        ):
            if names:
                lines.append(f"  {title} ({len(names)}): {short_list(names, 5)}")
        return "\n".join(lines)
