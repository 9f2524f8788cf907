"""Makes the environments of other versions of Keras and TensorFlow, beside `.venv`.

Each pair has a lock of its own in `locks/`, which `make lock` writes.
"""

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
FOLDER = ROOT / ".venvs"
NEXT = "next"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """An installed pair of versions.

    Attributes:
        name: Of its lock; or what it is.
        python: The Python that has it.
    """

    name: str
    python: Path


def locked_pairs() -> list[str]:
    """Returns the names of the pairs that have a lock of their own, the oldest first."""
    return sorted(path.stem for path in LOCKS.glob("keras-*-tensorflow-*.lock"))


def make(pair: str) -> Environment:
    """Makes the environment of a pair, where it is not there yet or its lock has changed.

    Raises:
        RuntimeError: It could not be installed.
    """
    lock, folder = LOCKS / f"{pair}.lock", FOLDER / pair
    made_of = f"{sys.version}\n{_digest(lock, ROOT / 'pyproject.toml')}"
    stamp = folder / "made-of"
    if not stamp.exists() or stamp.read_text() != made_of:
        _say(f"Installing {pair} into {folder.relative_to(ROOT)}")
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        _install(folder, "sync", "--require-hashes", str(lock))
        _install(folder, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        stamp.write_text(made_of)
    return Environment(name=pair, python=folder / "bin/python")


def make_next() -> Environment:
    """Makes the environment of the newest Keras that there is, be it a pre-release or a nightly.

    Beside it is the newest TensorFlow that is released. Each call takes what is newest then.

    Raises:
        RuntimeError: It could not be installed.
    """
    folder = FOLDER / NEXT
    _say(f"Installing the newest Keras into {folder.relative_to(ROOT)}")
    _uv("venv", "--clear", "--python", sys.executable, str(folder))
    project = ["--requirements", str(ROOT / "pyproject.toml")]
    groups = ["--group", f"{ROOT / 'pyproject.toml'}:promises", "--group", "build"]
    _install(folder, "install", *project, *groups)
    # Both are called `keras`: one must go before the other comes.
    _uv("pip", "uninstall", "--python", str(folder), "keras")
    _install(folder, "install", "--no-deps", "--prerelease", "allow", _newest_keras())
    _install(folder, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    return Environment(name=NEXT, python=folder / "bin/python")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # Not between the rows of the table.


def _newest_keras() -> str:
    """Returns the requirement of the newest release, pre-release or nightly of Keras."""
    candidates = []
    for name in ("keras", "keras-nightly"):
        lines = _uv("pip", "compile", "-", "--no-deps", "--prerelease", "allow", stdin=name)
        candidates += [line for line in lines.splitlines() if line.startswith(f"{name}==")]
    return max(candidates, key=order_of)


def order_of(requirement: str) -> tuple:
    """Returns what orders releases: a nightly comes before the release that it is on the way to."""
    version = requirement.partition("==")[2]
    numbers = [part for part in version.split(".") if part.isdigit()]
    return tuple(map(int, numbers[:2])), "dev" not in version, version


def _install(folder: Path, *arguments: str) -> None:
    # Compiled at once, as in the Makefile.
    command, *others = arguments
    _uv("pip", command, "--python", str(folder), "--compile-bytecode", *others)


def _uv(*arguments: str, stdin: str = "") -> str:
    result = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), *arguments, "--quiet"],
        input=stdin,
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    if result.returncode != 0:
        raise RuntimeError(f"`uv {' '.join(arguments)}` failed:\n{result.stderr.strip()}")
    return result.stdout


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
