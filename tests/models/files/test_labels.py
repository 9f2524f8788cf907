"""What classes are called, beside a model."""

from models.files import labels


def test_names_come_back_and_numbers_stand_in_for_missing_ones(tmp_path):
    path = tmp_path / "labels.txt"
    labels.write(path, ("tench", "a: b"))

    assert path.read_text() == "0:tench\n1:a: b\n"
    assert labels.read(path, num_classes=3) == ["tench", "a: b", "2"]
    assert labels.read(tmp_path / "none", num_classes=2) == ["0", "1"]
