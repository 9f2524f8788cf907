r"""Write a dataset in another format: `python -m models.convert --help` lists the flags.

    python -m models.convert --dataset_name=digits --dataset_dir=data --output_dir=digits_folder
    python -m models.convert --dataset_name=folder --dataset_dir=digits_folder --form=tfrecords \
        --output_name=digits --output_dir=digits_records

Reads what models.train reads and writes all its splits: as a folder of images
(<split>/<class>/<number>.png) or as TFRecords in slim's format
(<name>_<split>_00000-of-00005.tfrecord). labels.txt keeps the numbers of the classes. Images are
written as PNG, which is lossless.
"""

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf
from absl import flags

from . import command, datasets, input_pipeline
from .datasets import image_folder, slim_records
from .files import labels
from .typed_flags import define_count, define_text
from .usage_error import UnreadableDataError, UsageError

_FORMS = ("folder", "tfrecords")


def main(argv: Sequence[str]) -> int:
    """Converts as the flags `argv` say and returns the exit code."""
    return command.run(_convert, define_flags=_define_flags, argv=argv, description=__doc__)


def _define_flags(values: flags.FlagValues) -> None:
    text = functools.partial(define_text, values)

    input_pipeline.define_dataset_flags(values)
    text("output_dir", None, "The folder to write. It must not exist yet.")
    text("output_name", None, "With tfrecords, how file names begin. Default: --dataset_name.")
    flags.DEFINE_enum("form", "folder", _FORMS, "The format to write.", flag_values=values)
    define_count(values, "num_shards", 1, "With tfrecords, the number of files per split.")


def _convert(values: flags.FlagValues) -> int:
    input_pipeline.check(values)
    if not values.output_dir:
        raise UsageError("--output_dir is missing. Say where to write, such as data/flowers.")
    target = Path(values.output_dir)
    if target.exists():
        raise UsageError(f"--output_dir {str(target)!r} exists already. Choose another one.")
    _check_name(values)
    first = _load(values, None)
    incomplete = target.with_name(f".incomplete_{target.name}")
    try:
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(parents=True)
        counts = {split: _write(values, split, incomplete) for split in first.split_names}
        labels.write(incomplete / labels.FILE, first.label_names)
        os.replace(incomplete, target)
    except OSError as error:
        raise UsageError(f"--output_dir {str(target)!r} cannot be written: {error}") from error
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)
    for split, count in counts.items():
        print(f"  {split:<15} {command.examples(count)}")
    print(f"Written: {target}")
    return 0


def _check_name(values: flags.FlagValues) -> None:
    if values.form == "folder":
        for name in "output_name", "num_shards":
            if values[name].present:
                raise UsageError(f"--{name} needs --form=tfrecords.")
        return
    name = values.output_name or values.dataset_name
    if Path(name).name != name:
        raise UsageError(f"{name!r} cannot begin names of files. Choose --output_name.")
    if slim_records.has_own_names(name):
        raise UsageError(
            f"{name!r} is a dataset whose files slim names in another way. Choose --output_name."
        )


def _load(values: flags.FlagValues, split: str | None) -> datasets.Dataset:
    return datasets.load(values.dataset_name, split=split, data_dir=values.dataset_dir)


def _write(values: flags.FlagValues, split: str, folder: Path) -> int:
    dataset = _load(values, split)
    with input_pipeline.damage_named(values, dataset):
        if values.form == "folder":
            return _write_folder(dataset, folder / split)
        return _write_records(dataset, values, folder, split)


def _write_folder(dataset: datasets.Dataset, folder: Path) -> int:
    folders = [folder / image_folder.name_of(label) for label in dataset.label_names]
    for label, each in zip(dataset.label_names, folders, strict=True):
        try:
            each.mkdir(parents=True)
        except FileExistsError as error:
            raise UsageError(
                f"The class {label!r} cannot have a folder of its own: another one has this name, "
                "or it is none. Correct the names, or write --form=tfrecords."
            ) from error
    digits = len(str(dataset.num_examples))
    count = 0
    for image, label in dataset.examples:
        if not 0 <= int(label) < len(folders):
            raise UnreadableDataError(
                f"Label {int(label)} of example {count} (from 0, in the stored order of the split "
                f"{folder.name!r}) is not one of the {len(folders)} classes, so that it belongs "
                "into no folder. Fix the data, or write --form=tfrecords."
            )
        path = folders[int(label)] / f"{count:0{digits}d}.png"
        path.write_bytes(tf.io.encode_png(image).numpy())
        count += 1
    return count


def _write_records(
    dataset: datasets.Dataset, values: flags.FlagValues, folder: Path, split: str
) -> int:
    name = f"{values.output_name or values.dataset_name}_{split}"
    if not re.fullmatch(slim_records.SPLIT, split):
        raise UsageError(
            f"The split {split!r} cannot be written: with --form=tfrecords, names of splits have "
            "only letters and digits."
        )
    shards = values.num_shards
    if shards > dataset.num_examples:
        raise UsageError(
            f"--num_shards={shards} is more than the {dataset.num_examples} examples of the split "
            f"{split!r}."
        )
    examples = _encoded(dataset)
    if shards == 1:
        return slim_records.write(folder / f"{name}.tfrecord", examples)
    bounds = [dataset.num_examples * shard // shards for shard in range(shards + 1)]
    return sum(
        slim_records.write(
            folder / f"{name}_{shard:05d}-of-{shards:05d}.tfrecord",
            (next(examples) for _ in range(bounds[shard + 1] - bounds[shard])),
        )
        for shard in range(shards)
    )


def _encoded(dataset: datasets.Dataset) -> Iterator[slim_records.Encoded]:
    for image, label in dataset.examples:
        height, width, _ = image.shape
        content = tf.io.encode_png(image).numpy()
        yield slim_records.Encoded(content, height, width, int(label))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
