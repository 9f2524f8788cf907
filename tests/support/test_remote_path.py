"""Paths on this machine and elsewhere."""

from kerasdist.support.remote_path import absolute


def test_a_path_on_a_disk_stays_the_same_where_the_working_directory_changes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert absolute("runs/1") == str(tmp_path / "runs/1")
    assert absolute(str(tmp_path)) == str(tmp_path)
    assert absolute("gs://bucket/run") == "gs://bucket/run"
