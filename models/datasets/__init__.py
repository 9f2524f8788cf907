"""The datasets: one table, name to builder, and in addition every name of tensorflow-datasets.

    digits = datasets.load("digits", split="train", data_dir="data")

A new dataset is an import and a row; its builder has SPLIT_SIZES. "folder" is a folder of images,
and a name whose TFRecords in slim's format are in `data_dir` is read from these.
"""

import functools
import io
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from .. import own_parts
from ..usage_error import UnreadableDataError, UsageError, did_you_mean, in_one_line
from . import connection, image_folder, slim_records, splits
from .damage import first_damage
from .dataset import Dataset as Dataset
from .dataset import FilePart
from .digits import Digits

BUILDERS: dict[str, type[tfds.core.DatasetBuilder]] = {
    "digits": Digits,
}

FOLDER = "folder"
_MOST = 500  # Characters of what tensorflow-datasets says.


def load(name: str, *, split: str | None, data_dir: str) -> Dataset:
    """Returns a split of the dataset `name`; the first time, writes its files into `data_dir`.

    Everything that can be checked is checked before anything is written. Files are written into a
    directory that gets its real name when it is complete, so an interrupted run does not disturb
    the next one.

    Args:
        name: A key of `BUILDERS`, "folder", the name of TFRecords in slim's format, any name that
            `tfds.builder` takes, or the module and name of one's own function.
        split: One of its splits, or a slice such as "train[:80%]". None is the first.
        data_dir: Where the datasets are; must exist.

    Raises:
        UsageError: The name or the split is unknown, the directory is missing, or the data cannot
            be downloaded.
        UnreadableDataError: A file is incomplete, or what describes the data is damaged.
    """
    if not Path(data_dir).is_dir():
        raise UsageError(
            f"--dataset_dir {str(data_dir)!r} is not a directory. Create it "
            f"(mkdir -p {data_dir}) or give the one that holds your datasets."
        )
    if own_parts.is_own(name):
        return own_parts.find("--dataset_name", name)(split=split, data_dir=data_dir)
    if name == FOLDER:
        return image_folder.load(split=split, data_dir=data_dir)
    if files := slim_records.files_of(name, data_dir):
        return slim_records.load(name, files, split=split, data_dir=data_dir)
    with _description_named(name, data_dir):
        builder = _make_builder(name, data_dir)
        _check_features(name, builder)
    # It warns if there is no folder, too.
    if not (Path(builder.data_dir).is_dir() and builder.is_prepared()):
        # Builders of this application know their splits before they have written them.
        if split and name in BUILDERS:
            splits.parts(name, split, BUILDERS[name].SPLIT_SIZES)
        _prepare(name, builder, Path(data_dir))
    with _description_named(name, data_dir):
        return _of_builder(name, builder, split)


def _of_builder(name: str, builder: tfds.core.DatasetBuilder, split: str | None) -> Dataset:
    sizes = {key: each.num_examples for key, each in builder.info.splits.items()}
    chosen = split or next(iter(sizes))
    splits.parts(name, chosen, sizes)
    features, info = builder.info.features, builder.info.splits[chosen]

    def read(record):
        example = features.deserialize_example(record)
        return example["image"], example["label"]

    return Dataset(
        records=[FilePart(each.filename, each.skip, each.take) for each in info.file_instructions],
        read=read,
        num_examples=info.num_examples,
        label_names=tuple(features["label"].names),
        channels=features["image"].shape[-1],
        split_names=tuple(sizes),
        damage=functools.partial(first_damage, builder, chosen),
    )


@contextmanager
def _description_named(name: str, data_dir: str) -> Generator[None]:
    """Says so if what describes a dataset, beside its files, cannot be read."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # Of damaged descriptions, tensorflow-datasets raises many kinds.
        folder = _folder_of(name, data_dir)
        if not folder.is_dir():
            raise
        raise UnreadableDataError(
            f"--dataset_name {name!r}: what describes it in {folder} cannot be read: "
            f"{in_one_line(error)[:_MOST]} Remove the folder to have it written anew."
        ) from error


def _folder_of(name: str, data_dir: str) -> Path:
    """Returns where tensorflow-datasets keeps all versions of a dataset."""
    return Path(data_dir) / re.split("[/:]", name)[0]


def _make_builder(name: str, data_dir: str) -> tfds.core.DatasetBuilder:
    if name in BUILDERS:
        return BUILDERS[name](data_dir=data_dir)
    try:
        return tfds.builder(name, data_dir=data_dir)
    except ValueError as error:  # DatasetNotFoundError is one, a malformed name is another.
        is_unknown = isinstance(error, tfds.core.DatasetNotFoundError)
        if not is_unknown and _folder_of(name, data_dir).is_dir():
            raise
        closest = did_you_mean(name, [*BUILDERS, *tfds.list_builders()])
        raise UsageError(
            f"Unknown --dataset_name {name!r}. Valid names: {', '.join(sorted(BUILDERS))}, "
            f"{FOLDER}, and those of https://www.tensorflow.org/datasets/catalog{closest}"
        ) from error


def _check_features(name: str, builder: tfds.core.DatasetBuilder) -> None:
    if builder.info.supervised_keys != ("image", "label"):
        raise UsageError(
            f"--dataset_name {name!r} is not for image classification, which needs pairs of image "
            f"and label. Its features: {', '.join(builder.info.features)}."
        )
    image, label = (builder.info.features[key] for key in ("image", "label"))
    if image.np_dtype != np.uint8 or len(image.shape) != 3 or image.shape[-1] not in (1, 3):
        raise UsageError(
            f"--dataset_name {name!r} has images {image}, but uint8 of [height, width, 1 or 3] "
            "is needed."
        )
    if not isinstance(label, tfds.features.ClassLabel) or not label.num_classes:
        raise UsageError(f"--dataset_name {name!r} has labels {label}, not a ClassLabel.")


def _prepare(name: str, builder: tfds.core.DatasetBuilder, data_dir: Path) -> None:
    # tensorflow-datasets would try for minutes.
    if name not in BUILDERS and connection.is_offline():
        raise UsageError(
            f"Could not get --dataset_name {name!r}: it is not in {data_dir}, and there is no "
            f"network connection to download it. These need none: {', '.join(BUILDERS)}, {FOLDER} "
            "and TFRecords in slim's format."
        )
    print(f"Writing the dataset {name!r} into {builder.data_dir} (only this once).")
    try:
        with _without_leftovers(data_dir), _quiet() if name in BUILDERS else nullcontext():
            builder.download_and_prepare(file_format="tfrecord")
    # AssertionError is how tensorflow-datasets asks for files that have to be fetched by hand.
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        raise UsageError(f"Could not get --dataset_name {name!r}: {error}") from error


@contextmanager
def _quiet() -> Generator[None]:
    """Hides what tensorflow-datasets prints: it would mention a download, and there is none."""
    tfds.disable_progress_bar()
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        tfds.enable_progress_bar()


@contextmanager
def _without_leftovers(data_dir: Path) -> Generator[None]:
    """Removes, after an error, the folders that were not there before."""
    before = set(data_dir.iterdir())
    try:
        yield
    except BaseException:
        for path in set(data_dir.iterdir()) - before:
            shutil.rmtree(path, ignore_errors=True)
        raise
