"""A file that is never half written."""

import os

import pytest

from kerasdist.files.whole_file import can_be_whole, whole_file


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    return path


def test_the_new_file_takes_the_place_of_the_old_one_at_the_end(path):
    with whole_file(str(path)) as unfinished:
        write(unfinished, "new")
        assert path.read_text() == "old"
        assert unfinished.endswith(".keras")

    assert path.read_text() == "new"
    assert os.listdir(path.parent) == [path.name]


def test_after_an_error_the_old_file_is_there_alone(path):
    with pytest.raises(OSError, match="full"), whole_file(str(path)) as unfinished:
        write(unfinished, "ne")
        raise OSError("full")

    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


def test_what_a_kill_has_left_is_overwritten(path):
    write(path.with_name(".writing-model.keras"), "half of a longer one")

    with whole_file(str(path)) as unfinished:
        write(unfinished, "new")

    assert path.read_text() == "new"
    assert os.listdir(path.parent) == [path.name]


def test_a_link_and_the_mode_stay(path, tmp_path):
    link = tmp_path / "latest.keras"
    link.symlink_to(path)
    path.chmod(0o640)

    with whole_file(str(link)) as unfinished:
        write(unfinished, "new")

    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_name_of_another_kind_keeps_the_suffix(tmp_path):
    target, link = tmp_path / "store" / "abc123", tmp_path / "latest.keras"
    target.parent.mkdir()
    link.symlink_to(target)

    with whole_file(str(link)) as unfinished:
        assert unfinished.endswith(".keras")
        write(unfinished, "new")

    assert target.read_text() == "new"


@pytest.mark.parametrize("name", ["x" * 249, "字" * 83], ids=["of one byte", "of three bytes"])
def test_the_longest_name_that_there_can_be(name, tmp_path):
    path = tmp_path / f"{name}.keras"

    with whole_file(str(path)) as unfinished:
        assert unfinished.endswith(".keras")
        write(unfinished, "new")

    assert path.read_text() == "new"


def test_what_is_no_file_on_a_disk_cannot_be_whole(path, tmp_path):
    assert can_be_whole(str(path))
    assert can_be_whole(str(tmp_path / "new.keras"))
    assert not can_be_whole(str(tmp_path))
    assert not can_be_whole(str(tmp_path / "absent/new.keras"))
    assert not can_be_whole("gs://bucket/new.keras")
