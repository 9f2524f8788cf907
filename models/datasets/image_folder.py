"""A plain folder of images, one folder for each class.

data/train/cats/1.jpg
data/train/dogs/2.png
data/test/cats/3.jpg
data/labels.txt         "0:dogs", a line for each class; need not be there

Without folders of splits (data/cats/1.jpg) all images are the split "train". Without labels.txt the
classes are numbered in the order of their names, over all splits.
"""

import os
from pathlib import Path

import tensorflow as tf

from ..files import labels
from ..usage_error import UnreadableDataError, UsageError, printable
from . import splits
from .damage import READ_ERRORS, reason_of
from .dataset import Dataset
from .encoded_image import decode

_IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".gif"}
_CHANNELS = 3
_MOST_SHOWN = 3  # Files that are skipped.


def load(*, split: str | None, data_dir: str) -> Dataset:
    """Returns a split of the images in a folder, in the order of their names; gray ones become RGB.

    Args:
        split: Such as "train", or a slice of one. None is the first.
        data_dir: The folder.

    Raises:
        UsageError: There is no such split, there are no images, or labels.txt lacks a class.
        UnreadableDataError: labels.txt is damaged, or the name of a class is not UTF-8.
    """
    folders = _folders_of_splits(Path(data_dir))
    images = {name: list(_images(folder)) for name, folder in folders.items()}
    found = sorted({path.parent.name for paths in images.values() for path in paths})
    if not found:
        raise UsageError(
            f"--dataset_dir {str(data_dir)!r} has no images: <split>/<class>/<image> or "
            f"<class>/<image> is needed, with {', '.join(sorted(_IMAGES))}."
        )
    _check_names(found)
    names = _label_names(Path(data_dir) / labels.FILE, found)
    numbers = {name_of(name): number for number, name in enumerate(names)}
    _tell_what_is_skipped(folders, images)
    sizes = {name: len(paths) for name, paths in images.items()}
    paths = [
        path
        for part in splits.parts("folder", split or next(iter(sizes)), sizes)
        for path in images[part.split][part.begin : part.end]
    ]
    classes = tf.constant([numbers[path.parent.name] for path in paths], tf.int64)
    # As bytes: the name of a file need not be text.
    files = tf.data.Dataset.from_tensor_slices(([os.fsencode(path) for path in paths], classes))
    return Dataset(
        records=files,
        read=lambda record: (_read(record[0]), record[1]),
        num_examples=len(paths),
        label_names=names,
        channels=_CHANNELS,
        split_names=tuple(sizes),
        damage=lambda: _first_damage(paths),
    )


def name_of(label: str) -> str:
    """Returns the name of the folder that holds the images of a class."""
    return label.replace("/", "_")


def _check_names(found: list[str]) -> None:
    for name in found:
        if printable(name) != name:
            raise UnreadableDataError(
                f"The folder of the class {name!r} has a name that cannot be printed. Rename it."
            )


def _label_names(path: Path, found: list[str]) -> tuple[str, ...]:
    """Returns the names in a labels.txt, which has to name the classes found; else these."""
    num_classes = labels.count(path)
    if not num_classes:
        return tuple(found)
    names = labels.read(path, num_classes=num_classes)
    unknown = sorted(set(found) - set(map(name_of, names)))
    if unknown:
        raise UsageError(
            f"{path} does not name the class {unknown[0]!r}. Add it, or remove the file to number "
            "the classes in the order of their names."
        )
    return tuple(names)


def _folders_of_splits(root: Path) -> dict[str, Path]:
    inner = [path for path in sorted(root.iterdir()) if path.is_dir()]
    has_splits = any(
        each.is_dir() and not _is_named_as_image(each) for path in inner for each in path.iterdir()
    )
    return {path.name: path for path in inner} if has_splits else {"train": root}


def _images(folder: Path):
    for path in sorted(folder.glob("*/*")):
        if _is_named_as_image(path) and path.is_file():
            yield path


def _is_named_as_image(path: Path) -> bool:
    return path.suffix.lower() in _IMAGES and not path.name.startswith(".")


def _tell_what_is_skipped(folders: dict[str, Path], images: dict[str, list[Path]]) -> None:
    found = {path for paths in images.values() for path in paths}
    others = [
        path
        for folder in folders.values()
        for path in sorted(folder.rglob("*"))
        if path not in found
        and path.name != labels.FILE
        and (path.is_file() or _is_named_as_image(path))
    ]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
        shown = ", ".join(map(printable, others[:_MOST_SHOWN]))
        print(f"Skipped, because they are not images of a class: {shown}{more}.")


def _read(path: tf.Tensor | bytes) -> tf.Tensor:
    return decode(tf.io.read_file(path), channels=_CHANNELS)


def _first_damage(paths: list[Path]) -> str:
    for path in paths:
        try:
            _read(os.fsencode(path))
        except READ_ERRORS as error:
            return f"{printable(path)} cannot be read: {reason_of(error)}"
    return ""
