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
    assert "kerasdist/config.py" in names


def test_the_lock_pins_every_requirement():
    groups = PROJECT["dependency-groups"].values()
    wanted = [*PROJECT["project"]["dependencies"], *(line for group in groups for line in group)]

    pinned = {line.split("==")[0] for line in LOCK.splitlines() if re.match(r"[a-z].*==", line)}
    assert {name_of(requirement) for requirement in wanted} <= pinned


def test_the_lock_agrees_with_exact_pins():
    for requirement in PROJECT["dependency-groups"]["lint"]:
        assert f"\n{requirement} " in LOCK


def test_the_lock_has_hashes_and_names_no_host():
    packages = re.findall(r"^[a-z].*==.*$", LOCK, flags=re.MULTILINE)

    assert packages
    assert all(package.endswith("\\") for package in packages)  # A hash follows.
    assert "://" not in LOCK


def name_of(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement)[0]
    return re.sub(r"[._-]+", "-", name).lower()
