"""The table of datasets, and what is said of names that are not in it."""

import socket
import threading

import pytest
import tensorflow_datasets as tfds

from models import datasets
from models.datasets import connection
from models.usage_error import UsageError


class Sentences(tfds.core.GeneratorBasedBuilder):
    """A dataset without images."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        raise AssertionError("Not reached.")

    def _generate_examples(self):
        raise AssertionError("Not reached.")


def test_an_unknown_dataset_is_answered_with_the_closest_of_tensorflow_datasets(tmp_path):
    with pytest.raises(UsageError, match=r"'mnistt'. Valid names: digits.*did you mean 'mnist'\?"):
        datasets.load("mnistt", split="train", data_dir=tmp_path)


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("offline")
def test_offline_a_download_is_refused_at_once_and_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match=r"'mnist': it is not in .*, and there is no network"):
        datasets.load("mnist", split="train", data_dir=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_leaves_nothing_but_what_was_there(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.connection, "is_offline", lambda: False)
    (tmp_path / "mine").mkdir()

    def fail(builder, *args, **kwargs):
        (tmp_path / "downloads/mnist").mkdir(parents=True)
        raise tfds.download.DownloadError("Not found: 404")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(UsageError, match="Could not get --dataset_name 'mnist': Not found: 404"):
        datasets.load("mnist", split="train", data_dir=tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.usefixtures("offline")
def test_a_proxy_may_know_names(monkeypatch):
    assert connection.is_offline()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert not connection.is_offline()


def test_a_look_up_that_hangs_delays_neither_the_answer_nor_the_end(monkeypatch):
    for name in ("https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    may_end, before = threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place: may_end.wait(30) and [place])
    monkeypatch.setattr(connection, "_TIMEOUT_SECS", 0.01)

    assert connection.is_offline()
    hanging = set(threading.enumerate()) - before
    assert [thread.daemon for thread in hanging] == [True, True]
    may_end.set()


@pytest.mark.parametrize("split", ["tran", "train+tset", "validation[:10]"])
def test_an_unknown_split_is_answered_with_the_splits_before_anything_is_written(tmp_path, split):
    with pytest.raises(UsageError, match=r"Valid splits: train \(1437 .*\), test \(360 examples\)"):
        datasets.load("digits", split=split, data_dir=tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("train[:abc]", r"'train\[:abc\]' of 'digits' cannot be read: .*\[10%:20%\]\.$"),
        ("train[:2000]", "cannot be read: .* incompatible with 1437 examples"),
        ("train[5:5]", "has no examples"),
        ("test[90:80]+test[360:]", "has no examples"),
    ],
)
def test_a_slice_that_cannot_be_read_is_refused_before_anything_is_written(
    tmp_path, split, message
):
    with pytest.raises(UsageError, match=message) as raised:
        datasets.load("digits", split=split, data_dir=tmp_path)

    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_slice_of_a_split_can_be_read(tmp_path):
    dataset = datasets.load("digits", split="train[:10]+test[:5]", data_dir=tmp_path)

    assert dataset.num_examples == len(list(dataset.examples)) == 15


def test_a_directory_that_does_not_exist_is_not_created(tmp_path):
    with pytest.raises(UsageError, match=r"--dataset_dir '.*missing' is not a directory. Create"):
        datasets.load("digits", split="train", data_dir=tmp_path / "missing")

    assert list(tmp_path.iterdir()) == []


def test_a_dataset_without_images_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(datasets.BUILDERS, "sentences", Sentences)

    with pytest.raises(UsageError, match=r"not for image classification.*features: text"):
        datasets.load("sentences", split="train", data_dir=tmp_path)
