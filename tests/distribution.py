"""Tries what is released: `dist/` in empty environments, as somebody else would.

    python -m tests.distribution    # after `python -m build`; see `make dist`

The wheel and the sdist are each installed with nothing but what they ask for, train the first
example of the README, and show their types to a type checker.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What the check of the types needs beside kerasdist.
OTHERS = ("mypy",)
# The second line of it is wrong, which only a checker that sees our types can tell.
TYPED = """
import kerasdist
kerasdist.DeploymentConfig(num_clones="two")
"""


def main() -> int:
    """Returns the exit code: 0 where both work."""
    example = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[
        0
    ]
    for pattern in ("*.whl", "*.tar.gz"):
        (archive,) = (ROOT / "dist").glob(pattern)
        with tempfile.TemporaryDirectory() as folder:
            python = _install(Path(folder), archive)
            _run([python, "-c", example], folder)
            _run([python, "-m", "kerasdist", "--version"], folder)
            types = _run([python, "-m", "mypy", "-c", TYPED], folder, returncode=1)
            assert 'incompatible type "str"; expected "int"' in types, types
            assert "Found 1 error" in types, types
        print(f"{archive.name} installs, trains and has types", flush=True)
    return 0


def _install(folder: Path, archive: Path) -> str:
    uv, python = str(Path(sys.executable).with_name("uv")), str(folder / "bin/python")
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], folder)
    _run([uv, "pip", "install", "--quiet", "--python", python, str(archive), *OTHERS], folder)
    return python


def _run(command: list[str], folder: Path | str, *, returncode: int = 0) -> str:
    result = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    assert result.returncode == returncode, f"{command[:4]}\n{result.stdout}{result.stderr}"
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
