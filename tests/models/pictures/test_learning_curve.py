"""The picture of a training run."""

import pytest

from models.pictures.learning_curve import write_learning_curve

TRAIN = {"loss": [2.0, 1.0, 0.5], "accuracy": [0.3, 0.6, 0.9]}
VALIDATION = {"val_loss": [2.1, 1.2, 0.8], "val_accuracy": [0.3, 0.5, 0.8]}


@pytest.mark.parametrize("history", [TRAIN, TRAIN | VALIDATION])
def test_the_picture_is_written_in_one_piece(tmp_path, history):
    path = tmp_path / "learning_curve.png"

    write_learning_curve(history, path, title="lenet on digits")

    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]
