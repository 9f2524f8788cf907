"""The names of the classes, in a file of slim's format beside a model or a dataset.

0:tench
1:goldfish
"""

from pathlib import Path

from models.whole_file import whole_file

FILE = "labels.txt"


def write(path: Path, names: tuple[str, ...]) -> None:
    """Writes the names of the classes 0, 1, ..."""
    lines = (f"{number}:{name}\n" for number, name in enumerate(names))
    with whole_file(path) as incomplete:
        incomplete.write_text("".join(lines))


def read(path: Path, *, num_classes: int) -> list[str]:
    """Returns the names of the classes; a class that the file does not name gets its number."""
    names = _names(path)
    return [names.get(number, str(number)) for number in range(num_classes)]


def count(path: Path) -> int:
    """Returns how many classes a file has; 0 if there is no such file."""
    return max(_names(path), default=-1) + 1


def _names(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    parts = (line.partition(":") for line in path.read_text().splitlines())
    return {
        int(number): name.strip() for number, colon, name in parts if colon and _is_number(number)
    }


def _is_number(text: str) -> bool:
    return text.strip().isdecimal()
