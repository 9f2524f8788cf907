"""What is said of files that cannot be read."""

import re
import shutil

import pytest
import tensorflow as tf

from models import datasets, train

pytestmark = pytest.mark.thorough


@pytest.fixture
def data_dir(data_dir, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(data_dir, tmp_path / "data")


def file_of(data_dir):
    (path,) = data_dir.glob("digits/*/digits-train.tfrecord*")
    return path


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def keep_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_no_images(path):
    example = tf_example(image=b"a sentence", label=3)
    writer = tf.io.TFRecordWriter(str(path))
    for _ in range(1437):
        writer.write(example)
    writer.close()


def tf_example(*, image, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            flip_a_bit,
            r"record \d+ \(from 0\) of .*digits-train\.tfrecord\S+ cannot be read: .*corr",
        ),
        (
            keep_half,
            r"record \d+ \(from 0\) of .*digits-train\.tfrecord\S+ cannot be read: .*trunc",
        ),
        (write_no_images, r"record 0 \(from 0\) of .*tfrecord\S+ cannot be read: .*[Ii]mage"),
        (
            lambda path: path.unlink(),
            r"record 0 \(from 0\) of .*tfrecord\S+ cannot be read: .*No s",
        ),
    ],
    ids=["flipped bit", "half a file", "text for images", "missing"],
)
def test_a_broken_file_ends_the_run_with_one_line_and_code_1(
    break_it, message, data_dir, tmp_path, capsys
):
    break_it(file_of(data_dir))
    arguments = ["--dataset_name=digits", f"--dataset_dir={data_dir}", "--model_name=lenet"]

    code = train.main([*arguments, f"--train_dir={tmp_path / 'run'}", "--max_number_of_steps=50"])

    assert code == 1
    error = capsys.readouterr().err
    assert re.fullmatch(f"error: --dataset_name 'digits': {message}.*\n", error), error
    assert not (tmp_path / "run/model.keras").exists()


def test_nothing_is_said_of_whole_files(data_dir):
    assert datasets.load("digits", split="train[:10]", data_dir=data_dir).damage() == ""
