"""Data that people bring along: slim's TFRecords, and plain folders of images."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import convert, datasets, evaluate, nets, train
from models.datasets import slim_records
from models.files import labels
from models.usage_error import UnreadableDataError, UsageError

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def folder(data_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "folder"
    flags = ["--dataset_name=digits", f"--dataset_dir={data_dir}", f"--output_dir={path}"]
    assert convert.main(flags) == 0
    return path


@pytest.fixture(scope="module")
def records(data_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "records"
    flags = ["--dataset_name=digits", f"--dataset_dir={data_dir}", f"--output_dir={path}"]
    flags += ["--form=tfrecords", "--num_shards=3", "--output_name=numbers"]
    assert convert.main(flags) == 0
    return path


def content(dataset):
    return sorted((int(label), image.numpy().tobytes()) for image, label in dataset.examples)


def test_records_hold_what_the_dataset_holds(data_dir, records):
    names = sorted(path.name for path in records.iterdir())
    assert names == [
        "labels.txt",
        *(f"numbers_test_{shard:05d}-of-00003.tfrecord" for shard in range(3)),
        *(f"numbers_train_{shard:05d}-of-00003.tfrecord" for shard in range(3)),
    ]
    for split in "train", "test":
        ours = datasets.load("numbers", split=split, data_dir=records)
        theirs = datasets.load("digits", split=split, data_dir=data_dir)
        assert ours.num_examples == theirs.num_examples
        assert (ours.channels, ours.label_names) == (3, theirs.label_names)
        assert ours.split_names == ("test", "train")
        # In the same order, too.
        gray = ours.examples.map(lambda image, label: (image[..., :1], label))
        pairs = zip(gray, theirs.examples, strict=True)
        assert all(int(a[1]) == int(b[1]) and np.array_equal(a[0], b[0]) for a, b in pairs)


def encoded(channels: int, dtype: str) -> slim_records.Encoded:
    image = np.full((4, 5, channels), np.iinfo(dtype).max, dtype)
    return slim_records.Encoded(tf.io.encode_png(image).numpy(), 4, 5, 0)


GRAY, COLOR = (1, "uint8"), (3, "uint8")
WITH_ALPHA = [(2, "uint8"), (4, "uint8")]
OF_16_BITS = [(1, "uint16"), (3, "uint16")]


@pytest.mark.parametrize(("name", "channels"), [("odd", 3), ("mnist", 1), ("digits", 1)])
@pytest.mark.parametrize("first", [GRAY, COLOR])
def test_the_name_of_records_says_how_many_channels_all_of_them_have(
    name, channels, first, tmp_path
):
    labels.write(tmp_path / "labels.txt", tuple("0123456789"))
    images = [first, GRAY, COLOR, *WITH_ALPHA, *OF_16_BITS]
    slim_records.write(tmp_path / f"{name}_train.tfrecord", [encoded(*image) for image in images])

    dataset = datasets.load(name, split="train", data_dir=tmp_path)

    assert dataset.channels == dataset.examples.element_spec[0].shape[-1] == channels
    for image, _ in dataset.examples:
        np.testing.assert_array_equal(image, np.full((4, 5, channels), 255))


def test_a_folder_holds_what_the_dataset_holds(data_dir, folder):
    ours = datasets.load("folder", split="test", data_dir=folder)
    theirs = datasets.load("digits", split="test", data_dir=data_dir)

    assert ours.label_names == tuple("0123456789")
    assert ours.channels == 3
    assert ours.num_examples == theirs.num_examples
    grey = ours.examples.map(lambda image, label: (image[..., :1], label))
    examples = sorted((int(label), image.numpy().tobytes()) for image, label in grey)
    assert examples == content(theirs)


def test_a_folder_keeps_the_numbers_of_the_classes(tmp_path):
    names = (*map(str, range(11)), "maple/elm")  # By their names, "10" comes before "2".
    source, target = tmp_path / "records", tmp_path / "folder"
    source.mkdir()
    labels.write(source / "labels.txt", names)
    images = [np.full((2, 2, 3), label, "uint8") for label in range(12)]
    slim_records.write(
        source / "trees_train.tfrecord",
        (
            slim_records.Encoded(tf.io.encode_png(image).numpy(), 2, 2, label)
            for label, image in enumerate(images)
        ),
    )
    flags = ["--dataset_name=trees", f"--dataset_dir={source}", f"--output_dir={target}"]
    assert convert.main(flags) == 0

    dataset = datasets.load("folder", split=None, data_dir=target)

    assert dataset.label_names == names
    assert [(int(label), int(image[0, 0, 0])) for image, label in dataset.examples] == [
        (int(label), int(label)) for _, label in dataset.examples
    ]


def test_a_class_that_the_file_of_labels_does_not_have_is_refused(folder, tmp_path, capsys):
    root = shutil.copytree(folder / "test", tmp_path / "folder")
    labels.write(root / "labels.txt", tuple("012345678"))

    with pytest.raises(UsageError, match=r"labels\.txt does not name the class '9'\. Add it, or"):
        datasets.load("folder", split=None, data_dir=root)

    labels.write(root / "labels.txt", (*"0123456789", "none"))
    assert datasets.load("folder", split=None, data_dir=root).num_classes == 11
    assert "labels.txt" not in capsys.readouterr().out


def test_a_folder_without_splits_is_one_and_slices_are_parts_of_it(folder, capsys):
    (folder / "test/3/notes.txt").write_text("not an image")
    dataset = datasets.load("folder", split="train[10:20]+train[:5]", data_dir=folder / "test")

    assert dataset.split_names == ("train",)
    assert dataset.num_examples == len(list(dataset.examples)) == 15
    assert f"not images of a class: {folder}/test/3/notes.txt.\n" in capsys.readouterr().out


def test_slices_of_records(records):
    whole = datasets.load("numbers", split="train", data_dir=records)
    part = datasets.load("numbers", split="train[470:490]+test[:3]", data_dir=records)

    assert part.num_examples == len(list(part.examples)) == 23
    expected = [int(label) for _, label in whole.examples][470:490]
    assert [int(label) for _, label in part.examples][:20] == expected


@pytest.mark.parametrize(
    ("name", "files", "num_classes"),
    [
        ("cifar10", {"train": "cifar10_train.tfrecord"}, 10),
        ("flowers", {"validation": "flowers_validation_00000-of-00001.tfrecord"}, 5),
        ("imagenet", {"train": "train-00000-of-00001"}, 1001),
        ("mnist", {"test": "mnist_test.tfrecord"}, 10),
        ("visualwakewords", {"val": "val.record-00000-of-00001"}, 2),
    ],
)
def test_files_at_slims_names_are_read_without_labels(name, files, num_classes, tmp_path):
    png = tf.io.encode_png(np.zeros((4, 5, 3), "uint8")).numpy()
    for file in files.values():
        assert slim_records.write(tmp_path / file, [slim_records.Encoded(png, 4, 5, 1)]) == 1
    [split] = files

    dataset = datasets.load(name, split=split, data_dir=tmp_path)

    assert dataset.num_classes == num_classes
    [(image, label)] = dataset.examples
    assert image.shape == (4, 5, 1 if name == "mnist" else 3)
    assert int(label) == 1


def test_a_missing_shard_is_named(records, tmp_path):
    for path in records.glob("*_train_0000[02]*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())

    with pytest.raises(
        UsageError, match=r"'numbers'.* 'train' has 2 of 3 files such as .*00000-of"
    ):
        datasets.load("numbers", split="train", data_dir=tmp_path)


def test_records_of_another_kind_are_named(tmp_path):
    writer = tf.io.TFRecordWriter(str(tmp_path / "birds_train.tfrecord"))
    writer.write(b"a sentence")
    writer.close()

    with pytest.raises(UnreadableDataError, match=r"birds_train.tfrecord does not begin with a"):
        datasets.load("birds", split="train", data_dir=tmp_path)


def test_records_without_classes_are_refused(records, tmp_path):
    for path in records.glob("*.tfrecord"):
        (tmp_path / path.name).write_bytes(path.read_bytes())

    with pytest.raises(UsageError, match=r"'numbers' needs .*labels.txt, which names the classes"):
        datasets.load("numbers", split="train", data_dir=tmp_path)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no images: <split>/<class>/<image> or"):
        datasets.load("folder", split="train", data_dir=tmp_path)


def test_an_image_that_cannot_be_read_is_named_by_training(folder, tmp_path, capsys):
    broken = folder / "train/3/broken.png"
    broken.write_bytes(b"not an image")
    flags = [f"--dataset_dir={folder}", "--dataset_name=folder", f"--train_dir={tmp_path / 'run'}"]
    flags += ["--model_name=lenet", "--max_number_of_steps=100", "--batch_size=32"]
    try:
        assert train.main(flags) == 1
    finally:
        broken.unlink()

    assert f"'folder': {broken} cannot be read: " in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_record_that_cannot_be_read_is_named_by_training(records, tmp_path, capsys):
    for path in records.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "numbers_train_00001-of-00003.tfrecord"
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)
    flags = [f"--dataset_dir={tmp_path}", "--dataset_name=numbers", "--model_name=lenet"]

    assert train.main([*flags, f"--train_dir={tmp_path}/run", "--max_number_of_steps=60"]) == 1

    assert f"(from 0) of {path} cannot be read: corrupted" in capsys.readouterr().err


def test_grey_images_of_a_folder_are_those_of_the_dataset(data_dir, folder, tmp_path, capsys):
    keras.utils.set_random_seed(0)
    nets.build("lenet", num_classes=10, weight_decay=0.0).save(tmp_path / "model.keras")
    told = []
    for flags in (
        ["--dataset_name=digits", f"--dataset_dir={data_dir}"],
        ["--dataset_name=folder", f"--dataset_dir={folder}", "--use_grayscale"],
    ):
        assert evaluate.main([*flags, f"--checkpoint_path={tmp_path / 'model.keras'}"]) == 0
        told.append(capsys.readouterr().out.partition("Accuracy  ")[2])

    assert told[0]
    assert told[0] == told[1]


def test_a_target_that_is_there_is_not_touched(data_dir, tmp_path, capsys):
    flags = ["--dataset_name=digits", f"--dataset_dir={data_dir}", f"--output_dir={tmp_path}"]

    assert convert.main(flags) == 2

    assert "exists already. Choose another one." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--num_shards=361"],
            "--num_shards=361 is more than the 360 examples of the split 'test'",
        ),
        (["--output_name=a/b"], "'a/b' cannot begin names of files. Choose --output_name."),
        (["--output_name=imagenet"], "'imagenet' is a dataset whose files slim names in another"),
        (["--form=folder", "--output_name=a"], "--output_name needs --form=tfrecords."),
        (["--form=folder", "--num_shards=2"], "--num_shards needs --form=tfrecords."),
    ],
)
def test_what_could_not_be_read_again_is_not_written(flags, message, data_dir, tmp_path, capsys):
    common = ["--dataset_name=digits", f"--dataset_dir={data_dir}", "--form=tfrecords"]

    assert convert.main([*common, f"--output_dir={tmp_path / 'out'}", *flags]) == 2

    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_splits_of_other_names_are_found_again_or_refused(folder, tmp_path, capsys):
    for name, split in ("a", "Val1"), ("b", "test_b"):
        shutil.copytree(folder / "test", tmp_path / name / split)
        flags = ["--dataset_name=folder", f"--dataset_dir={tmp_path / name}", "--form=tfrecords"]
        flags += ["--output_name=numbers", f"--output_dir={tmp_path / name / 'out'}"]
        if split == "Val1":
            assert convert.main(flags) == 0
            found = datasets.load("numbers", split=split, data_dir=tmp_path / name / "out")
            assert found.num_examples == 360
        else:
            assert convert.main(flags) == 2
            assert "The split 'test_b' cannot be written" in capsys.readouterr().err
