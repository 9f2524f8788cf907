"""The names of the classes, in a file of slim's format beside a model or a dataset.

0:tench
1:goldfish
"""

import os
import re
from pathlib import Path

from ..usage_error import UnreadableDataError, printable
from .whole_file import whole_file

FILE = "labels.txt"
_LINE = re.compile(r"\s*(\d{1,18})\s*:(.*)")
_MOST_UNNAMED = 1000  # Classes. With more, a number is wrong: a list of 10**11 fills the memory.


def write(path: Path, names: tuple[str, ...]) -> None:
    """Writes the names of the classes 0, 1, ..."""
    lines = (f"{number}:{name}\n" for number, name in enumerate(names))
    with whole_file(path) as incomplete:
        incomplete.write_text("".join(lines), encoding="utf-8")


def read(path: Path, *, num_classes: int) -> list[str]:
    """Returns the names of the classes; a class that the file does not name gets its number.

    Raises:
        UnreadableDataError: The file cannot be read; so for `count`.
    """
    names = _names(path)
    return [names.get(number, str(number)) for number in range(num_classes)]


def count(path: Path) -> int:
    """Returns how many classes a file has; 0 if there is no such file."""
    return max(_names(path), default=-1) + 1


def _names(path: Path) -> dict[int, str]:
    if not os.path.lexists(path):
        return {}
    names: dict[int, str] = {}
    for place, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise UnreadableDataError(
                f"{path}: line {place} is {line[:50]!r}, but a line such as 0:daisy is "
                "needed for each class."
            )
        number, name = int(match[1]), printable(match[2].strip())
        if names.setdefault(number, name) != name:
            raise UnreadableDataError(
                f"{path}: line {place} names class {number} {name!r}, which an earlier "
                f"line names {names[number]!r}. Correct one of them."
            )
    if not names:
        raise UnreadableDataError(f"{path} is empty. Remove it, or name the classes in it.")
    num_unnamed = max(names) + 1 - len(names)
    if num_unnamed > _MOST_UNNAMED:
        raise UnreadableDataError(
            f"{path} numbers a class {max(names)}, but names only {len(names)}: at most "
            f"{_MOST_UNNAMED} may be without a name. Correct the line."
        )
    return names


def _text(path: Path) -> str:
    if not path.is_file():  # One would wait for what is written to a pipe.
        raise UnreadableDataError(f"{path} is not a file. Remove it, or name the classes in it.")
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableDataError(
            f"{path} is not UTF-8 text: line {line} has the byte "
            f"0x{content[error.start]:02x}. Save it as UTF-8."
        ) from error
