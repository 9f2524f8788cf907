"""What is said of files that cannot be read."""

import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from models import convert, datasets, train
from models.datasets import slim_records
from models.usage_error import UnreadableDataError

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


def test_the_record_whose_length_is_damaged_is_named_and_not_the_one_where_it_leads(tmp_path):
    path = write_records(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)

    with pytest.raises(UnreadableDataError, match=r"'mini': record 1 \(from 0\) of .*: corrupted"):
        datasets.load("mini", split="train", data_dir=tmp_path)


def test_a_first_record_that_is_damaged_is_named(tmp_path):
    path = write_records(tmp_path)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)

    with pytest.raises(UnreadableDataError, match=r"'mini': record 0 \(from 0\) of .*: corrupted"):
        datasets.load("mini", split="train", data_dir=tmp_path)


@pytest.mark.parametrize("number", [0, 1])
def test_a_record_that_is_no_example_is_named_though_it_is_not_text(number, tmp_path, capsys):
    path = write_records(tmp_path)
    records = [each.numpy() for each in tf.data.TFRecordDataset(str(path))]
    records[number] = b"\x0a\xff\xff\xe9" + records[number]
    writer = tf.io.TFRecordWriter(str(path))
    for each in records:
        writer.write(each)
    writer.close()
    flags = ["--dataset_name=mini", f"--dataset_dir={tmp_path}", f"--output_dir={tmp_path}/out"]

    assert convert.main(flags) == 1

    (error,) = capsys.readouterr().err.splitlines()
    told = (
        f"record 1 (from 0) of {path} cannot be read" if number else f"{path} does not begin with"
    )
    assert told in error
    assert error.endswith(": Could not parse example input")


@pytest.mark.parametrize("name", ["mini_train.tfrecord", "labels.txt"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_named_and_not_waited_for(name, make, tmp_path):
    write_records(tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)

    with pytest.raises(UnreadableDataError, match=f"{name} is not a file"):
        datasets.load("mini", split="train", data_dir=tmp_path)


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
        (b"99999999999:a\n0:b\n", "labels.txt numbers a class 99999999999, but names only 2: at "),
        (b"0:a\n" + b"9" * 5000 + b":b", r"labels.txt: line 2 is '9{50}', but a line such as 0:da"),
        (b"0:a\n1:caf\xe9\n", "labels.txt is not UTF-8 text: line 2 has the byte 0xe9. Save it"),
        (b"\na\n", "labels.txt: line 2 is 'a', but a line such as 0:daisy is needed for each"),
        (b" \n", "labels.txt is empty. Remove it, or name the classes in it."),
        (b"0:a\n0:b\n", "labels.txt: line 2 names class 0 'b', which an earlier line names 'a'"),
    ],
)
def test_labels_that_cannot_be_used_are_named(content, message, tmp_path):
    write_records(tmp_path, content)

    with pytest.raises(UnreadableDataError, match=message):
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
    with pytest.raises(UnreadableDataError, match=r"class 'caf\\udce9' has a name that cannot"):
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


def test_the_colors_of_print_are_read(tmp_path):
    (tmp_path / "a").mkdir()
    for name, ink in ("0.jpg", (0, 0, 0, 0)), ("1.jpg", (0, 255, 255, 0)):
        Image.new("CMYK", (8, 8), ink).save(tmp_path / "a" / name)

    white, red = datasets.load("folder", split=None, data_dir=tmp_path).examples

    np.testing.assert_allclose(white[0], np.full((8, 8, 3), 255), atol=3)
    np.testing.assert_allclose(red[0], np.full((8, 8, 3), (255, 0, 0)), atol=3)


def convert_digits(data_dir, tmp_path):
    flags = ["--dataset_name=digits", f"--dataset_dir={data_dir}", f"--output_dir={tmp_path}/out"]
    return convert.main(flags)


def test_records_that_are_missing_at_the_end_are_counted(data_dir, tmp_path, capsys):
    path = file_of(data_dir)
    *records, _ = (each.numpy() for each in tf.data.TFRecordDataset(str(path)))
    writer = tf.io.TFRecordWriter(str(path))
    for each in records:
        writer.write(each)
    writer.close()

    assert convert_digits(data_dir, tmp_path) == 1

    error = capsys.readouterr().err
    assert error == f"error: --dataset_name 'digits': {path} has 1436 records instead of 1437\n"


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": 3}', b"caf\xe9"])
def test_a_description_that_is_damaged_is_named(content, data_dir, tmp_path, capsys):
    (path,) = data_dir.glob("digits/*/dataset_info.json")
    path.write_bytes(content)

    assert convert_digits(data_dir, tmp_path) == 1

    (error,) = capsys.readouterr().err.splitlines()
    assert f"'digits': what describes it in {data_dir}/digits cannot be read: " in error


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_without_a_folder_is_named(label, tmp_path, capsys):
    write_records(tmp_path)
    png = tf.io.encode_png(tf.zeros((2, 2, 3), tf.uint8)).numpy()
    examples = [slim_records.Encoded(png, 2, 2, each) for each in (0, label)]
    slim_records.write(tmp_path / "mini_train.tfrecord", examples)
    flags = ["--dataset_name=mini", f"--dataset_dir={tmp_path}", f"--output_dir={tmp_path}/out"]

    assert convert.main(flags) == 1

    told = f"Label {label} of example 1 (from 0, in the stored order of the split 'train') is not"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a", "..", "."])
def test_a_class_that_no_folder_can_hold_is_named(name, tmp_path, capsys):
    write_records(tmp_path, f"0:a\n1:{name}\n".encode())
    flags = ["--dataset_name=mini", f"--dataset_dir={tmp_path}", f"--output_dir={tmp_path}/out"]

    assert convert.main(flags) == 2

    assert f"The class {name!r} cannot have a folder of its own" in capsys.readouterr().err


def test_nothing_is_said_of_whole_files(data_dir):
    assert datasets.load("digits", split="train[:10]", data_dir=data_dir).damage() == ""
