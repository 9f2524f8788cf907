"""Draws the rooms of kerasdist for docs/architecture.md, from the map and the first lines of files.

    python -m tests.rooms               # Writes the page's pictures and tables anew.

A room stands above all that it imports; rooms of one floor do not import each other.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"


def page_with_pictures(*, of_kerasdist: Mapping, of_training: Mapping) -> str:
    """Returns the page as it is, with pictures of the rooms as they are.

    Args:
        of_kerasdist: Which rooms each room may import.
        of_training: The same of `kerasdist.training`.
    """
    text = PAGE.read_text()
    for name, may_import, folder in (
        ("kerasdist", of_kerasdist, ROOT / "kerasdist"),
        ("training", of_training, ROOT / "kerasdist/training"),
    ):
        floors = _floors({room: may_import[room] for room in may_import if room != "__init__"})
        text = _with_part(text, name, f"{picture(floors)}\n\n{table(floors, folder)}")
    return text


def picture(floors: Mapping[str, int]) -> str:
    """Returns the house, the highest floor first, as a block of Markdown."""
    rows = []
    for floor in sorted(set(floors.values()), reverse=True):
        rooms = sorted(room for room in floors if floors[room] == floor)
        rows.append(f"{floor:>2} | {' | '.join(rooms)} |")
    return "\n".join(["```text", *rows, "```"])


def table(floors: Mapping[str, int], folder: Path) -> str:
    """Returns a table of rooms, the highest floor first, with what each is for."""
    rows = [
        f"| {floor} | `{room}` | {_title(folder, room)} |"
        for room, floor in sorted(floors.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return "\n".join(["| floor | room | what it holds |", "|---|---|---|", *rows])


def _with_part(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- rooms of {name} -->\n\n", "\n\n<!-- end -->"
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}{part}{end}{after}"


def _floors(may_import: Mapping[str, set[str]]) -> dict[str, int]:
    floors: dict[str, int] = {}

    def floor_of(room: str) -> int:
        if room not in floors:
            below = may_import[room] & may_import.keys()
            floors[room] = 1 + max(map(floor_of, below), default=0)
        return floors[room]

    for room in may_import:
        floor_of(room)
    return floors


def _title(folder: Path, room: str) -> str:
    path = folder / f"{room}.py"
    path = path if path.exists() else folder / room / "__init__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, path
    return docstring.partition("\n")[0]


def _main():
    from tests.test_architecture import MAY_IMPORT, TRAINING_MAY_IMPORT

    PAGE.write_text(page_with_pictures(of_kerasdist=MAY_IMPORT, of_training=TRAINING_MAY_IMPORT))
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    _main()
