"""Flags of a type: a text, a count, or a number in a range. They are checked when parsed."""

import itertools
import math
from collections.abc import Callable

from absl import flags

# So that `--help` lists a flag under the module that asks for it.
flags.disclaim_key_flags()

_MOST = 2**31 - 1  # Far more than any count needs; TensorFlow takes no number beyond 2**63 - 1.

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
    at_most: int = _MOST,
) -> None:
    """Defines a flag that takes a whole number; `at_least` None leaves the check to others."""
    parser = _Counts(at_least, math.inf if at_least is None else at_most)
    flags.DEFINE(parser, name, default, help, values, flags.ArgumentSerializer())


def define_counts(values: flags.FlagValues, name: str, help: str) -> None:
    """Defines a flag that takes rising counts, such as 60,120."""
    flags.DEFINE(_Rising(), name, None, help, values, flags.ListSerializer(","))


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
        name: The name of the flag.
        default: A number in the range, or None.
        help: One sentence for `--help`.
        range: One of the ranges in this file.
    """
    flags.DEFINE(_Parser(*range), name, default, help, values, flags.ArgumentSerializer())


class _Counts(flags.IntegerParser):
    def __init__(self, at_least: int | None, at_most: float):
        super().__init__(at_least)
        self._at_most = at_most

    def convert(self, argument: str | int):
        try:
            return super().convert(argument)
        except ValueError as error:
            raise ValueError("must be a whole number") from error

    def parse(self, argument: str | int):
        number = super().parse(argument)
        if number > self._at_most:
            raise ValueError(f"{number} is too large: at most {self._at_most} is possible")
        return number


class _Rising(flags.ArgumentParser):
    syntactic_help = "rising whole numbers from 1 on, comma-separated"

    def parse(self, argument: str | list[int]):
        if isinstance(argument, list):
            return argument
        words = argument.split(",")
        numbers = [0, *(int(word) for word in words if word.strip().isdecimal())]
        rise = all(low < high for low, high in itertools.pairwise(numbers))
        if len(numbers) <= len(words) or not rise or numbers[-1] > _MOST:
            raise ValueError(f"must be {self.syntactic_help}")
        return numbers[1:]

    def flag_type(self):
        return "counts"


class _Parser(flags.ArgumentParser):
    def __init__(self, words: str, contains: Callable[[float], bool]):
        self.syntactic_help = f"a number, {words}"
        self._words, self._contains = words, contains

    def parse(self, argument: str | float):
        number = _read(argument)
        if not (math.isfinite(number) and self._contains(number)):
            raise ValueError(f"must be a number, {self._words}")
        return number

    def flag_type(self):
        return "float"


def _read(argument: str | float) -> float:
    """Returns a number; what is none is not finite, either."""
    try:
        return float(argument)
    except ValueError:
        return math.nan
