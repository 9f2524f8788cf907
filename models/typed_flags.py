"""Flags of a type: a text, a count, or a number of a range, refused where it is read."""

import math
from collections.abc import Callable

from absl import flags

# Each range: what the message says, and whether a number is in it.
POSITIVE = "more than 0", lambda number: number > 0
NOT_NEGATIVE = "0 or more", lambda number: number >= 0
NOT_POSITIVE = "0 or less", lambda number: number <= 0
SHARE = "from 0 to 1", lambda number: 0 <= number <= 1
DECAY = "from 0 to less than 1", lambda number: 0 <= number < 1


def define_text(values: flags.FlagValues, name: str, default: str | None, help: str) -> None:
    """Defines a flag that takes any text."""
    flags.DEFINE_string(name, default, help, flag_values=values)


def define_count(
    values: flags.FlagValues,
    name: str,
    default: int | None,
    help: str,
    *,
    at_least: int | None = 1,
) -> None:
    """Defines a flag that takes a whole number; `at_least` None leaves the check to others."""
    flags.DEFINE_integer(name, default, help, lower_bound=at_least, flag_values=values)


def define_number(
    values: flags.FlagValues,
    name: str,
    default: float | None,
    help: str,
    range: tuple[str, Callable[[float], bool]],
) -> None:
    """Defines a flag that takes a finite number of a range.

    Args:
        values: Where the flag is defined.
        name: Of the flag.
        default: In the range.
        help: One sentence for `--help`.
        range: One of this file.
    """
    flags.DEFINE(_Parser(*range), name, default, help, values, flags.ArgumentSerializer())


class _Parser(flags.ArgumentParser):
    syntactic_help = "a number"

    def __init__(self, words: str, contains: Callable[[float], bool]):
        self._words, self._contains = words, contains

    def parse(self, argument):
        number = float(argument)
        if not (math.isfinite(number) and self._contains(number)):
            raise ValueError(f"must be a number, {self._words}")
        return number

    def flag_type(self):
        return "float"
