"""The digits, written as TFRecord and read again."""

import numpy as np
import pytest
import tensorflow as tf

from models import datasets
from models.datasets.digits import Digits


@pytest.mark.parametrize(("split", "size"), [("train", 1437), ("test", 360)])
def test_each_split_has_its_share_of_every_digit(data_dir, split, size):
    dataset = datasets.load("digits", split=split, data_dir=data_dir)

    labels = [int(label) for _, label in dataset.examples]

    assert len(labels) == dataset.num_examples == size
    np.testing.assert_allclose(np.bincount(labels) / size, 0.1, atol=0.01)


def test_images_are_enlarged_and_use_the_whole_range(data_dir):
    dataset = datasets.load("digits", split="test", data_dir=data_dir)
    images = np.stack([image for image, _ in dataset.examples])

    assert images.shape == (360, 28, 28, 1)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)
    assert not images[:, :2].any()
    np.testing.assert_array_equal(images[:, 2], images[:, 4])  # One pixel is three high.


def test_the_files_are_written_once_and_nothing_is_said_of_a_download(tmp_path, capfd, caplog):
    tf.constant(0)  # TensorFlow starts, and says so.
    capfd.readouterr()

    datasets.load("digits", split="train", data_dir=tmp_path)
    printed = capfd.readouterr()
    told = f"Writing the dataset 'digits' into {tmp_path}/digits/1.0.0 (only this once).\n"
    assert (printed.out, printed.err, caplog.text) == (told, "", "")

    dataset = datasets.load("digits", split="train", data_dir=tmp_path)
    next(iter(dataset.examples))  # A part of it alone.

    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_a_run_that_was_interrupted_while_writing_does_not_break_the_next(tmp_path, monkeypatch):
    def interrupt(self, indices, images, labels):
        yield 0, {"image": images[0], "label": 0}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Digits, "_generate_examples", interrupt)
        datasets.load("digits", split="train", data_dir=tmp_path)
    # A killed process leaves the unfinished directory as well.
    killed = tmp_path / "digits/incomplete.ABC123_1.0.0"
    killed.mkdir(parents=True)
    (killed / "digits-train.tfrecord-00000-of-00001").write_bytes(b"half")

    assert datasets.load("digits", split="train", data_dir=tmp_path).num_examples == 1437
