"""Tries what is released: `dist/` in empty environments, as somebody else would.

    python -m tests.distribution    # after `make dist` has built it

Each archive is installed with nothing but what it asks for. The library trains the first example of
the README and shows its types to a type checker; the application does what its README says. The
sdists are tried on this Python; the wheels on each Python from 3.11 to 3.13 that uv finds, with the
newest Keras and TensorFlow, and on this one with the oldest.
"""

import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
_UV = str(Path(sys.executable).with_name("uv"))
PYTHONS = ("3.11", "3.12", "3.13")
# What the check of the types needs beside kerasdist.
OTHERS = ("mypy",)
# The second line of it is wrong, which only a checker that sees our types can tell.
TYPED = """
import kerasdist
kerasdist.DeploymentConfig(num_clones="two")
"""
VERSIONS = """
import platform, keras, tensorflow
print(f"Python {platform.python_version()}, Keras {keras.__version__}, TensorFlow", end=" ")
print(tensorflow.__version__)
"""


def main() -> int:
    """Returns the exit code: 0 where everything works."""
    _try_in(sys.executable, "*.tar.gz")
    for version in PYTHONS:
        if python := _find_python(version):
            _try_in(python, "*.whl")
        else:
            print(f"Python {version} is not on this machine: not tried", flush=True)
    [oldest, *_] = sorted((ROOT / "locks").glob("keras-*.lock"))
    _, keras, _, tensorflow = oldest.stem.split("-")
    _try_in(sys.executable, "*.whl", f"keras=={keras}.*", f"tensorflow=={tensorflow}.*")
    return 0


def _try_in(python: str, pattern: str, *pins: str) -> None:
    """Installs both archives in an empty environment, and uses them there.

    Args:
        python: Of which the environment is made.
        pattern: Of the archives: wheels or sdists.
        *pins: What else is installed.
    """
    library, application = sorted((ROOT / "dist").glob(pattern), key=lambda path: len(path.name))
    example, *_ = _blocks("README.md", "python")
    commands = _blocks("models/README.md", "bash")[0].replace("\\\n", "").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        made = _install(Path(folder), python, [library, *OTHERS, *pins])
        found = _run([made, "-c", VERSIONS], folder).strip()
        assert pins or _is_newest(found), found
        _run([made, "-c", example], folder)
        _run([made, "-m", "kerasdist", "--version"], folder)
        types = _run([made, "-m", "mypy", "-c", TYPED], folder, returncode=1)
        assert 'incompatible type "str"; expected "int"' in types, types
        assert "Found 1 error" in types, types
        _pip(made, [library, application, *pins], folder)
        _run([made, "-c", "import models"], folder, returncode=1)  # A name for others to take.
        for line in commands:
            program, *words = line.split()
            if program == "kerasdist-models":
                told = _run([str(Path(made).with_name(program)), *words], folder)
                assert "models.evaluate" not in told, told
            elif program == "mkdir":
                _run([program, *words], folder)
    print(
        f"{library.name}, {application.name}: install, train and have types ({found})", flush=True
    )


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def _find_python(version: str) -> str | None:
    command = [_UV, "python", "find", "--no-python-downloads", version]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    return result.stdout.strip() if result.returncode == 0 else None


def _is_newest(found: str) -> bool:
    """Returns whether Keras and TensorFlow are those of the lock, but for their last numbers."""
    names = {"Keras": "keras", "TensorFlow": "tensorflow"}
    return all(
        f"{title} {metadata.version(name).rpartition('.')[0]}." in found
        for title, name in names.items()
    )


def _install(folder: Path, python: str, requirements: list) -> str:
    _run([_UV, "venv", "--quiet", "--clear", "--python", python, str(folder)], folder)
    made = str(folder / "bin/python")
    _pip(made, requirements, folder)
    return made


def _pip(python: str, requirements: list, folder: Path | str) -> None:
    _run([_UV, "pip", "install", "--quiet", "--python", python, *map(str, requirements)], folder)


def _run(command: list[str], folder: Path | str, *, returncode: int = 0) -> str:
    result = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    assert result.returncode == returncode, f"{command[:4]}\n{result.stdout}{result.stderr}"
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
