"""Splits of a dataset and their slices, as tensorflow-datasets writes them: "train[:80%]+test"."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow_datasets as tfds

from ..usage_error import UsageError


class Part(NamedTuple):
    """The examples begin, begin + 1, ..., end - 1 of a split."""

    split: str
    begin: int
    end: int


def names_in(split: str) -> list[str]:
    """Returns the splits that `split` reads: ["train", "test"] for "train[:80%]+test"."""
    return [part.partition("[")[0] for part in split.split("+")]


def parts(name: str, split: str, sizes: Mapping[str, int]) -> list[Part]:
    """Returns what `split` names.

    Args:
        name: Of the dataset, for messages.
        split: As the person wrote it.
        sizes: How many examples each split has.

    Raises:
        UsageError: There is no such split, it cannot be read, or it is empty.
    """
    if not sizes.keys() >= set(names_in(split)):
        valid = ", ".join(f"{key} ({size} examples)" for key, size in sizes.items())
        raise UsageError(
            f"Unknown --dataset_split_name {split!r} of {name!r}. Valid splits: {valid}."
        )
    infos = {
        key: tfds.core.SplitInfo(name=key, shard_lengths=[size], num_bytes=0)
        for key, size in sizes.items()
    }
    try:
        found = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    except (ValueError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--dataset_split_name {split!r} of {name!r} cannot be read: {reason} Write a slice as "
            "train[:100] or train[10%:20%]."
        ) from error
    # None is the beginning or the end.
    result = [
        Part(each.splitname, each.from_ or 0, sizes[each.splitname] if each.to is None else each.to)
        for each in found
    ]
    if all(part.end <= part.begin for part in result):
        raise UsageError(f"--dataset_split_name {split!r} of {name!r} has no examples.")
    return result
