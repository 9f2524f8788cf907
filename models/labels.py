"""What the classes of a model are called: a file beside it, in slim's format.

0:tench
1:goldfish
"""

from pathlib import Path

from models.whole_file import whole_file


def write(path: Path, names: tuple[str, ...]) -> None:
    """Write the names of the classes 0, 1, ..."""
    lines = (f"{number}:{name}\n" for number, name in enumerate(names))
    with whole_file(path) as incomplete:
        incomplete.write_text("".join(lines))


def read(path: Path, *, num_classes: int) -> list[str]:
    """Return the names of the classes; their numbers where the file has none."""
    names = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            number, colon, name = line.partition(":")
            if colon and number.strip().isdigit():
                names[int(number)] = name.strip()
    return [names.get(number, str(number)) for number in range(num_classes)]
