"""What must be true before a version can be released; `make release` asks it first.

    python -m tests.release

Prints what is not, a line each. Nothing is tagged or published.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Returns the exit code: 0 where the version can be released."""
    found = problems(version=_version(), changelog=(ROOT / "CHANGELOG.md").read_text())
    command = ["git", "status", "--porcelain"]
    changed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    found += [f"Not committed: {changed.splitlines()[0].strip()}, ..."] if changed else []
    print("\n".join(found) or f"{_version()} can be released, if what follows succeeds.")
    return 1 if found else 0


def problems(*, version: str, changelog: str) -> list[str]:
    """Returns what a version lacks to be released.

    Args:
        version: That of pyproject.toml.
        changelog: The text of CHANGELOG.md, the newest version first.
    """
    [newest, *_] = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"The version {version} is none of a release: take its end away.")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        found.append(f"CHANGELOG.md begins with {newest!r}: write `## {version} (YYYY-MM-DD)`.")
    return found


def _version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


if __name__ == "__main__":
    sys.exit(main())
