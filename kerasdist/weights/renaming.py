"""Renames what is in a source to paths in a model."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kerasdist import patterns
from kerasdist.weights.sources import Value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One entry of `rename`.

    Attributes:
        old: What the caller wrote.
        pattern: Matches the names that change.
        new: What takes the place of a match, as in `re.sub`.
    """

    old: str
    pattern: re.Pattern
    new: str | Callable[[re.Match], str]


def checked_rules(rename: Any) -> list[Rule]:
    """Returns the rules that the argument `rename` of `warm_start` stands for; none for None.

    Raises:
        TypeError: It, or one of its entries, has another type.
        ValueError: One is not a regular expression.
    """
    if rename is None:
        return []
    if isinstance(rename, Mapping):
        return [_of_names(old, new) for old, new in rename.items()]
    if isinstance(rename, str) or not isinstance(rename, Sequence):
        raise _wrong_type(rename)
    return [_of_expression(entry) for entry in rename]


def renamed(values: list[Value], rules: list[Rule]) -> list[tuple[Value, str]]:
    """Returns values with the names that they have for the model.

    Raises:
        ValueError: A rule matches no name, or its replacement asks for groups that it lacks.
    """
    unused = dict.fromkeys(range(len(rules)))
    pairs = []
    for value in values:
        numbers = (number for number, rule in enumerate(rules) if rule.pattern.search(value.name))
        number = next(numbers, None)
        unused.pop(number, None)
        pairs.append((value, value.name if number is None else _apply(rules[number], value.name)))
    for number in unused:
        old = rules[number].old
        raise ValueError(
            f"`rename` holds {old!r}, which matches no name in the source. Closest names: "
            f"{patterns.closest(old, [value.name for value in values])}."
        )
    return pairs


def _of_names(old: Any, new: Any) -> Rule:
    if not isinstance(old, str) or not isinstance(new, str):
        raise _wrong_type({old: new})
    start = new.rstrip("/")
    # Also after the name of the model, which some sources put in front.
    pattern = re.compile(rf"^([^/]+/)?{re.escape(old.rstrip('/'))}(?=/|$)")
    return Rule(old=old, pattern=pattern, new=lambda match: f"{match[1] or ''}{start}")


def _of_expression(entry: Any) -> Rule:
    is_pair = isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2
    if not is_pair or not (isinstance(entry[1], str) or callable(entry[1])):
        raise _wrong_type(entry)
    old, new = entry
    patterns.check_expression("rename", old)
    return Rule(old=old, pattern=re.compile(old), new=new)


def _wrong_type(received: Any) -> TypeError:
    return TypeError(
        "`rename` must be a dict from names to names, or a list of pairs: a regular expression "
        f"and its replacement, which is a str or a function. Received: {received!r}."
    )


def _apply(rule: Rule, name: str) -> str:
    try:
        return rule.pattern.sub(rule.new, name)
    except (re.error, IndexError) as error:
        if callable(rule.new):
            raise
        raise ValueError(
            f"`rename` replaces {rule.old!r} by {rule.new!r}, which is not a replacement for "
            f"`re.sub`: {error}."
        ) from error
