"""What is said of files that cannot be read."""

import os
import re
import shutil

import pytest
import tensorflow as tf

from models import datasets, train
from models.datasets import slim_records
from models.datasets.damage import UnreadableDataError
from models.usage_error import UsageError

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


def write_records(folder, labels_txt=b"0:a\n1:b\n"):
    png = tf.io.encode_png(tf.zeros((2, 2, 3), tf.uint8)).numpy()
    path = folder / "mini_train.tfrecord"
    slim_records.write(path, [slim_records.Encoded(png, 2, 2, 0)] * 3)
    (folder / "labels.txt").write_bytes(labels_txt)
    return path


@pytest.mark.parametrize("damaged", [7, -1], ids=["the length of a record", "the end of the file"])
def test_records_that_do_not_fit_their_file_are_named_before_they_are_read(damaged, tmp_path):
    path = write_records(tmp_path)
    content = bytearray(path.read_bytes())
    content[damaged] ^= 0x80
    path.write_bytes(content if damaged > 0 else content[:damaged])
    number = 0 if damaged > 0 else 2

    with pytest.raises(UnreadableDataError, match=rf"'mini': record {number} .* the file ends bef"):
        datasets.load("mini", split="train", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"99999999999:a\n0:b\n", "labels.txt numbers a class 99999999999, but only 10000000"),
        (b"0:a\n1:caf\xe9\n", "labels.txt is not UTF-8 text: line 2 has the byte 0xe9. Save it"),
    ],
)
def test_labels_that_cannot_be_used_are_named(content, message, tmp_path):
    write_records(tmp_path, content)

    with pytest.raises(UsageError, match=message):
        datasets.load("mini", split="train", data_dir=tmp_path)


def write_image(folder, name=b"0.png"):
    folder.mkdir(parents=True, exist_ok=True)
    content = tf.io.encode_png(tf.zeros((2, 2, 3), tf.uint8)).numpy()
    with open(os.fsencode(folder) + b"/" + name, "wb") as file:
        file.write(content)


def test_a_folder_that_is_named_as_an_image_is_skipped_with_a_word(tmp_path, capsys):
    write_image(tmp_path / "a")
    (tmp_path / "a" / "z.jpg").mkdir()

    dataset = datasets.load("folder", split=None, data_dir=tmp_path)

    assert len(list(dataset.examples)) == dataset.num_examples == 1
    assert f"not images of a class: {tmp_path}/a/z.jpg.\n" in capsys.readouterr().out


def test_the_name_of_an_image_need_not_be_text(tmp_path):
    write_image(tmp_path / "a", b"caf\xe9.png")
    dataset = datasets.load("folder", split=None, data_dir=tmp_path)
    assert len(list(dataset.examples)) == 1

    write_image(tmp_path / "caf\udce9")
    with pytest.raises(UsageError, match=r"class 'caf\\udce9' has a name that cannot be printed"):
        datasets.load("folder", split=None, data_dir=tmp_path)


def test_what_names_the_image_does_not_steer_the_terminal(tmp_path, capsys):
    write_image(tmp_path / "a")
    write_image(tmp_path / "b")
    (tmp_path / "a" / "\x1b]0;owned\x07.png").write_bytes(b"x")
    arguments = ["--dataset_name=folder", f"--dataset_dir={tmp_path}", "--model_name=lenet"]

    code = train.main([*arguments, f"--train_dir={tmp_path / 'run'}", "--max_number_of_steps=1"])

    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert r"/a/\x1b]0;owned\x07.png cannot be read: Unknown image file format" in error
    assert "{{" not in error


def test_nothing_is_said_of_whole_files(data_dir):
    assert datasets.load("digits", split="train[:10]", data_dir=data_dir).damage() == ""
