"""Files are whole or not there."""

import pytest

from models.whole_file import whole_file


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
