"""Fetches Keras' own tests: the wheel has none of them, the source distribution has.

    python -m tests.keras.source        # a line where there is something to do, quick otherwise

Only the test files are unpacked, and under a name of their own: the `keras` that they import stays
the installed one, and their classes do not count as Keras' own.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".keras-tests"
PACKAGE = "keras_tests"


def fetch() -> Path:
    """Makes sure that the tests of the locked Keras are there.

    Returns:
        The folder that holds them, as `keras_tests/trainers/trainer_test.py`.

    Raises:
        RuntimeError: They could not be downloaded, or are not what the lock says.
    """
    requirement = locked_requirement((ROOT / "requirements.lock").read_text())
    version = requirement.split()[0].partition("==")[2]
    folder = CACHE / f"keras-{version}"
    if folder.exists():
        return folder
    print(f"Fetching the tests of Keras {version} into {CACHE.name}", flush=True)
    CACHE.mkdir(exist_ok=True)
    # Unpacked beside it and renamed, so that what is there is whole.
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        unpacked = Path(temporary) / "unpacked"
        _unpack(_download(requirement, Path(temporary)), unpacked)
        unpacked.rename(folder)
    return folder


def locked_requirement(lock: str) -> str:
    """Returns the lines of Keras in a lock, its version with the hashes of its files."""
    found = re.search(r"^keras==\S+(?: \\\n +--hash=\S+)+", lock, re.MULTILINE)
    if found is None:
        raise RuntimeError("requirements.lock names no Keras with hashes. Write it anew: make lock")
    return found[0]


def _download(requirement: str, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(requirement)
    # pip checks the hash. What builds Keras is installed for us: pip wants it for the name alone.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary=keras", "--no-build-isolation", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(
            "Keras' own tests come from its source distribution, which pip could not download. "
            "Is the package index reachable? pip says:\n" + result.stderr.strip()
        )
    (archive,) = folder.glob("keras-*.tar.gz")
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as files:
        for member in files:
            _, _, inside = member.name.partition("/keras/src/")
            content = files.extractfile(member)
            if content is None or not inside.endswith("_test.py"):
                continue
            path = folder / PACKAGE / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())


if __name__ == "__main__":
    try:
        fetch()
    except RuntimeError as error:
        sys.exit(str(error))
