"""What is installed, and what a hosting service reads.

The wheel holds kerasdist alone, the lock pins all that it needs, and the files for a service say
what the project says elsewhere.
"""

import os
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
ISSUE_FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


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
    names = ("deploy", "docs", "libraries", "notebook", "profile", "torchrun")
    apart = {name: groups.pop(name) for name in names}

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


def test_the_workflow_of_a_hosting_service_runs_what_continuous_integration_runs():
    [job] = read_yaml(ROOT / ".github/workflows/ci.yml")["jobs"].values()

    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_the_hooks_before_a_commit_are_the_commands_of_make_lint():
    [local] = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    _, recipe = (ROOT / "Makefile").read_text().split("\nlint:", maxsplit=1)
    commands = re.findall(r"^\t@(\.venv.*)$", recipe.partition("\n\n")[0], flags=re.MULTILINE)

    assert commands
    assert [hook["entry"] for hook in local["hooks"]] == commands
    # No hook is downloaded.
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


def test_the_citation_names_the_version():
    citation = read_yaml(ROOT / "CITATION.cff")

    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]


@pytest.mark.parametrize("path", ISSUE_FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_can_be_read(path):
    form = read_yaml(path)

    assert "blank_issues_enabled" in form or {"name", "description", "body"} <= set(form)


def read_yaml(path: Path) -> dict:
    # In the lock, but not in an environment that was made before.
    return pytest.importorskip("yaml").safe_load(path.read_text())


def without_groups(group: list) -> list[str]:
    """Returns the requirements of a group; another one that it includes is a table."""
    return [line for line in group if isinstance(line, str)]


def names_of(requirements: list[str]) -> set[str]:
    names = (re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in requirements)
    return {re.sub(r"[._-]+", "-", name).lower() for name in names}


def pinned_by(lock: str) -> set[str]:
    return {line.split("==")[0] for line in lock.splitlines() if re.match(r"[a-z].*==", line)}
