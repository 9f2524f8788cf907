"""Opens HDF5 files of others, and refuses one that names other files of the machine."""

from collections.abc import Iterator
from typing import Any

import h5py


def opened(file: Any, name: str) -> h5py.File:
    """Returns an HDF5 file to read, all of whose content is in it.

    Args:
        file: A path, or a file object.
        name: What an error calls it.

    Raises:
        OSError: It is no HDF5 file.
        ValueError: It has links, external storage or virtual datasets, which Keras never writes.
    """
    found = h5py.File(file, "r")
    for reason in _reasons_to_refuse(found):
        found.close()
        raise ValueError(
            f"{name!r} may read other files of this machine, and is refused: {reason}. Keras "
            "writes no such file. If you trust it, load it where it was made, and save it again."
        )
    return found


def contents(file: h5py.File) -> dict[str, list]:
    """Returns [dtype, shape] of each dataset in a file, by its place."""
    found = {}

    def visit(place: str, item: Any):
        if isinstance(item, h5py.Dataset):
            found[place] = [str(item.dtype), list(item.shape)]

    file.visititems(visit)
    return found


def _reasons_to_refuse(file: h5py.File) -> Iterator[str]:
    groups, datasets = [file], []
    # It follows no links to elsewhere.
    file.visititems(
        lambda _, item: (datasets if isinstance(item, h5py.Dataset) else groups).append(item)
    )
    for group in groups:
        for name in group:
            kind = group.get(name, getclass=True, getlink=True)
            if kind is not h5py.HardLink:
                yield f"{name!r} in {group.name!r} is a link ({kind.__name__})"
    for dataset in datasets:
        if dataset.external:
            yield f"{dataset.name!r} is stored in {dataset.external[0][0]!r} (external storage)"
        if dataset.is_virtual:
            yield f"{dataset.name!r} is a virtual dataset"
