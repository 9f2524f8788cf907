"""What holds after every test of the launcher: no process and no temporary file is left."""

import tempfile

import psutil
import pytest

from tests import fork_server
from tests.launcher.programs import launched_processes


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    fork_server.stop()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    # Other launches of this machine are not ours.
    monkeypatch.setenv("OF_THIS_TEST", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(temporary.iterdir())
    assert not psutil.Process().children(recursive=True)
    assert not launched_processes()
