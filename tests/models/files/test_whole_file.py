"""Files are whole or not there."""

import os

import pytest

from models.files.whole_file import whole_file


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "picture.png"

    with whole_file(path) as incomplete:
        incomplete.write_text("new")
        assert not path.exists()
        assert incomplete.suffix == ".png"

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "picture.png"
    path.write_text("old")

    with pytest.raises(OSError, match="full"), whole_file(path) as incomplete:
        incomplete.write_text("half")
        raise OSError("The disk is full.")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_and_the_mode_stay(tmp_path):
    path, link = tmp_path / "picture.png", tmp_path / "newest.png"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)

    with whole_file(link) as incomplete:
        incomplete.write_text("new")

    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_name_of_another_kind_keeps_the_suffix(tmp_path):
    target, link = tmp_path / "store" / "abc123", tmp_path / "newest.png"
    target.parent.mkdir()
    link.symlink_to(target)

    with whole_file(link) as incomplete:
        assert incomplete.suffix == ".png"
        incomplete.write_text("new")

    assert target.read_text() == "new"


def test_the_disk_has_a_file_before_it_takes_its_place(tmp_path, monkeypatch):
    path, seen = tmp_path / "picture.png", []
    monkeypatch.setattr(
        os, "fsync", lambda file: seen.append((os.fstat(file).st_ino, path.exists()))
    )

    with whole_file(path) as incomplete:
        incomplete.write_text("new")

    assert seen == [(path.stat().st_ino, False)]


# 255 and 253 bytes, of at most 255.
@pytest.mark.parametrize("name", ["x" * 251 + ".png", "画" * 83 + ".png"], ids=["narrow", "wide"])
def test_a_name_as_long_as_the_disk_allows_can_be_written(tmp_path, name):
    with whole_file(tmp_path / name) as incomplete:
        incomplete.write_text("new")

    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_two_files_of_a_folder_can_be_written_at_once(tmp_path):
    with whole_file(tmp_path / "a.png") as one, whole_file(tmp_path / "b.png") as other:
        one.write_text("a")
        other.write_text("b")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.png": "a",
        "b.png": "b",
    }
