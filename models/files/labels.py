"""The names of the classes, in a file of slim's format beside a model or a dataset.

0:tench
1:goldfish
"""

from pathlib import Path

from ..usage_error import UsageError, printable
from .whole_file import whole_file

FILE = "labels.txt"
_MOST_CLASSES = 10_000_000  # A net for more fits no machine, and the names alone fill its memory.


def write(path: Path, names: tuple[str, ...]) -> None:
    """Writes the names of the classes 0, 1, ..."""
    lines = (f"{number}:{name}\n" for number, name in enumerate(names))
    with whole_file(path) as incomplete:
        incomplete.write_text("".join(lines), encoding="utf-8")


def read(path: Path, *, num_classes: int) -> list[str]:
    """Returns the names of the classes; a class that the file does not name gets its number.

    Raises:
        UsageError: The file cannot be read; so for `count`.
    """
    names = _names(path)
    return [names.get(number, str(number)) for number in range(num_classes)]


def count(path: Path) -> int:
    """Returns how many classes a file has; 0 if there is no such file."""
    return max(_names(path), default=-1) + 1


def _names(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    parts = [line.partition(":") for line in _text(path).splitlines()]
    names = {
        int(number): printable(name.strip())
        for number, colon, name in parts
        if colon and _is_number(number)
    }
    if max(names, default=0) >= _MOST_CLASSES:
        raise UsageError(
            f"{path} numbers a class {max(names)}, but only {_MOST_CLASSES} classes, from 0, are "
            "possible. Correct the line."
        )
    return names


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path} is not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}. "
            "Save it as UTF-8."
        ) from error


def _is_number(text: str) -> bool:
    return text.strip().isdecimal()
