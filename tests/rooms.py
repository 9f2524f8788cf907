"""Draws the rooms of kerasdist for docs/architecture.md, from the map and the first lines of files.

    python -m tests.rooms               # Writes the page's two pictures anew.

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
        text = _with_table(text, name, picture(may_import, folder))
    return text


def picture(may_import: Mapping[str, set[str]], folder: Path) -> str:
    """Returns a table of rooms, the highest floor first, with what each is for."""
    shown = {room: below for room, below in may_import.items() if room != "__init__"}
    rows = [
        f"| {floor} | `{room}` | {_title(folder, room)} |"
        for room, floor in sorted(_floors(shown).items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return "\n".join(["| floor | room | what it holds |", "|---|---|---|", *rows])


def _with_table(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- rooms of {name} -->\n\n", "\n\n<!-- end -->"
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}{table}{end}{after}"


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
