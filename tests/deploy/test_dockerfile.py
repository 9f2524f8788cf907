"""The Dockerfile of deploy/: what can be said of it without Docker."""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Of Docker's reference, those that are not deprecated.
KNOWN = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    split = (line.partition(" ") for line in lines if line.strip())
    return [(name, rest.strip()) for name, _, rest in split]


def copied() -> list[str]:
    """Returns the paths of the checkout that get into the image."""
    return [path for name, rest in instructions() if name == "COPY" for path in rest.split()[:-1]]


def test_each_instruction_is_known():
    names = [name for name, _ in instructions()]

    assert names[0] == "FROM"
    assert set(names) <= KNOWN
    assert "USER" in names  # Not root.


def test_its_python_is_one_of_ours():
    version = re.fullmatch(r"python:3\.(\d+)-slim", dict(instructions())["FROM"])

    assert version
    assert f"Programming Language :: Python :: 3.{version[1]}" in PROJECT["classifiers"]


def test_the_extra_that_its_comment_names_exists():
    [extra] = re.findall(r'EXTRA="\[(\w+)\]"', (ROOT / "deploy/Dockerfile").read_text())

    assert extra in PROJECT["optional-dependencies"]


def test_what_it_copies_exists_and_is_not_ignored():
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    first, *rules = [rule for rule in ignored if not rule.startswith("#")]

    assert first == "*"
    for path in copied():
        assert (ROOT / path).exists()
        assert any(fnmatch.fnmatch(f"!{path}", rule) for rule in rules)


@pytest.mark.processes
def test_what_it_copies_is_enough_to_build_the_package(tmp_path):
    for path in map(Path, copied()):
        if (ROOT / path).is_dir():
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / path, tmp_path / path, ignore=skipped)
        else:
            shutil.copy(ROOT / path, tmp_path)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "dist"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    assert len(list((tmp_path / "dist").glob("kerasdist-*.whl"))) == 1


def test_what_it_starts_is_in_the_image():
    asked = dict(instructions())
    installed = [rest for name, rest in instructions() if name == "RUN" and "apt-get" in rest]

    assert json.loads(asked["ENTRYPOINT"]) == ["tini", "--"]
    assert json.loads(asked["CMD"]) == ["python", "train.py"]
    assert "deploy/train.py" in copied()
    assert "tini" in shlex.split(installed[0])
