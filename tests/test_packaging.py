"""What is installed: the wheel holds kerasdist alone, and the lock pins all that it needs."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
# Those of older versions are for their tests, which need less.
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "locks").glob("*.lock"))]


@pytest.mark.processes
def test_the_wheel_holds_kerasdist_alone(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0].removesuffix(".dist-info") for name in names}
    assert folders == {"kerasdist", f"kerasdist-{PROJECT['project']['version']}"}
    assert {"kerasdist/config.py", "kerasdist/py.typed"} <= set(names)


def test_the_locks_pin_every_requirement():
    groups = dict(PROJECT["dependency-groups"])
    # Environments of their own.
    apart = {name: groups.pop(name) for name in ("docs", "libraries", "notebook", "profile")}

    lines = [line for group in groups.values() for line in without_groups(group)]
    assert names_of(PROJECT["project"]["dependencies"] + lines) <= pinned_by(LOCK)
    for name, group in apart.items():
        assert names_of(without_groups(group)) <= pinned_by(
            (ROOT / f"locks/{name}.lock").read_text()
        )


def test_the_lock_agrees_with_exact_pins():
    for requirement in PROJECT["dependency-groups"]["lint"]:
        assert f"\n{requirement} " in LOCK


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_hashes_and_names_no_host(path):
    lock = path.read_text()
    packages = re.findall(r"^[a-z].*==.*$", lock, flags=re.MULTILINE)

    assert packages
    assert all(package.endswith("\\") for package in packages)  # A hash follows.
    assert "://" not in lock


def without_groups(group: list) -> list[str]:
    """Returns the requirements of a group; another one that it includes is a table."""
    return [line for line in group if isinstance(line, str)]


def names_of(requirements: list[str]) -> set[str]:
    names = (re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in requirements)
    return {re.sub(r"[._-]+", "-", name).lower() for name in names}


def pinned_by(lock: str) -> set[str]:
    return {line.split("==")[0] for line in lock.splitlines() if re.match(r"[a-z].*==", line)}
