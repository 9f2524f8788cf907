"""Each test has a folder with the script that is trained, and the processes it starts there."""

import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.schedulers import training
from tests.schedulers.processes import PATH, ROOT, Processes, none_left


@pytest.fixture
def folder() -> Generator[Path]:
    """The folder of the test, with the script and deploy/. Its path is as short as a socket's."""
    with tempfile.TemporaryDirectory(prefix="kerasdist-") as name:
        training.write(Path(name) / "train.py")
        shutil.copytree(ROOT / "deploy", Path(name) / "deploy")
        training.write(Path(name) / "deploy/train.py")
        yield Path(name)


@pytest.fixture
def processes(folder) -> Generator[Processes]:
    """What the test starts, all of which ends with it."""
    variables = {
        "PATH": PATH,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/lean"), str(ROOT)]),
        "PYTHON_EXEC": sys.executable,  # torchrun starts this one, and not its own.
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "USER": getpass.getuser(),
    }
    with none_left(folder, variables) as found:
        yield found
