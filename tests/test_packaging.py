"""What is installed, and what a hosting service reads.

Each wheel holds one package, the lock pins all that it needs, and the files for a service say
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

from tests import release

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
APPLICATION = tomllib.loads((ROOT / "models/pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
# Those of older versions are for their tests, which need less.
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "locks").glob("*.lock"))]
ISSUE_FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("folder", "package", "files"),
    [
        (ROOT, "kerasdist", {"config.py", "py.typed"}),
        (ROOT / "models", "kerasdist_models", {"__main__.py", "recipes/lenet_digits.py"}),
    ],
    ids=["library", "application"],
)
def test_a_wheel_holds_one_package(folder, package, files, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=folder,
        check=True,
        capture_output=True,
    )

    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0].removesuffix(".dist-info") for name in names}
    assert folders == {package, f"{package}-{PROJECT['project']['version']}"}
    assert {f"{package}/{name}" for name in files} <= set(names)


def test_the_application_is_released_with_the_library_it_needs():
    version = PROJECT["project"]["version"]
    library, *others = sorted(APPLICATION["dependencies"], key=lambda line: "kerasdist" not in line)

    assert (APPLICATION["version"], library) == (version, f"kerasdist=={version}")
    assert sorted(others) == PROJECT["dependency-groups"]["app"]
    for name in ("requires-python", "license"):
        assert APPLICATION[name] == PROJECT["project"][name]


def test_the_locks_pin_every_requirement():
    groups = dict(PROJECT["dependency-groups"])
    # Environments of their own.
    names = ("deploy", "docs", "libraries", "notebook", "profile", "slim", "torchrun")
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


@pytest.mark.parametrize(
    ("version", "heading", "found"),
    [
        ("0.2.0", "0.2.0 (2026-12-24)", []),
        ("0.2.0.dev0", "0.2.0.dev0 (2026-12-24)", ["take its end away"]),
        ("0.2.0", "0.2.0 (not released yet)", ["write `## 0.2.0 (YYYY-MM-DD)`"]),
        ("0.2.0", "0.1.0 (2026-11-30)", ["CHANGELOG.md begins with '0.1.0 (2026-11-30)'"]),
    ],
)
def test_a_release_has_a_version_and_its_changes(version, heading, found):
    problems = release.problems(version=version, changelog=f"# Changelog\n\n## {heading}\n")

    assert [text in problem for text, problem in zip(found, problems, strict=True)] == [True] * len(
        found
    )


def test_the_changelog_begins_with_the_version():
    [newest, *_] = re.findall(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert newest == PROJECT["project"]["version"]


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
