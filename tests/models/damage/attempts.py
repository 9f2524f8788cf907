"""Attempts: a program of this project, called with an input that is damaged."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import tensorflow as tf
from absl import flags

from kerasdist import __main__ as kerasdist_main
from models import (
    command,
    convert,
    datasets,
    deployment,
    evaluate,
    input_pipeline,
    learning_rates,
    migrate,
    optimizers,
    predict,
    train,
)
from models.usage_error import UsageError, printable
from tests.models.damage import mutations

_OUT = "out"
_OF_DATA = (1,)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A call of a program in a folder of its own, which holds all inputs.

    Args:
        run: Calls it, and returns the exit code.
        damaged: The name of the damaged file, which the error has to tell; "" if it need not.
        codes: The exit codes that an error may have.
        silent: Returns what was taken for whole, given what the program printed to stdout and
            stderr before it ended with 0; "" if nothing was.
    """

    run: Callable[[], int]
    damaged: str = ""
    codes: Collection[int] = (1, 2)
    silent: Callable[[str, str], str] = lambda stdout, stderr: ""


def records(random: Random, whole: Path) -> Attempt:
    """A file of TFRecords with sums that tell the damage."""
    path = Path("records/birds_train.tfrecord")
    _damage(path, random)
    written = _images_in(whole / "records_as_folder")
    return Attempt(
        run=_convert("birds", "records"),
        damaged=path.name,
        codes=_OF_DATA,
        silent=lambda *_: "" if _images_in(Path(_OUT)) <= written else "other images are written",
    )


def contents(random: Random, whole: Path) -> Attempt:
    """A record that is not what slim has written, with sums that are right."""
    path = Path("records/birds_train.tfrecord")
    found = [each.numpy() for each in tf.data.TFRecordDataset(str(path))]
    number = random.randrange(len(found))
    found[number] = mutations.mutated(found[number], random)
    writer: Any = tf.io.TFRecordWriter(str(path))
    with writer:
        for each in found:
            writer.write(each)
    return Attempt(run=_convert("birds", "records"), damaged=path.name, codes=_OF_DATA)


def picture(random: Random, whole: Path) -> Attempt:
    """An image in a folder."""
    path = random.choice(sorted(Path("pictures").rglob("*.*")))
    _damage(path, random)
    run = _convert("folder", "pictures", "--form=tfrecords")
    return Attempt(run=run, damaged=path.name, codes=_OF_DATA)


def entry(random: Random, whole: Path) -> Attempt:
    """Something else among the images of a folder."""
    folder = Path("pictures/train/jay")
    mutations.put_odd_entry(folder, (folder / "1.jpeg").read_bytes(), random)
    form = random.choice(["folder", "tfrecords"])
    return Attempt(run=_convert("folder", "pictures", f"--form={form}"))


def names(random: Random, whole: Path) -> Attempt:
    """The names of the classes."""
    path = Path("records/labels.txt")
    if random.random() < 0.3:
        lines = [b"99999999999:a", b"-1:a", b"0:other", b"9" * 5000 + b":a", b"3:caf\xe9"]
        path.write_bytes(path.read_bytes() + random.choice(lines) + b"\n")
    else:
        _damage(path, random)
    return Attempt(run=_convert("birds", "records"))


def model(random: Random, whole: Path) -> Attempt:
    """A model of Keras."""
    path = Path("model/model.keras")
    _damage(path, random)
    expected = (whole / "predicted.txt").read_text()
    return Attempt(
        run=lambda: predict.main([f"--checkpoint_path={path}", "image.png"]),
        damaged=path.name,
        silent=lambda stdout, _: "" if stdout == expected else f"other classes: {stdout}",
    )


def checkpoint(random: Random, whole: Path) -> Attempt:
    """A file of the newest checkpoint of a training."""
    newest = max(Path("run").glob("step-*"))
    _damage(random.choice(sorted(newest.iterdir())), random)
    return _inspection("run", whole, newest.name)


def slim_checkpoint(random: Random, whole: Path) -> Attempt:
    """A file of a checkpoint of TF-Slim."""
    _damage(random.choice(sorted(Path("slim").iterdir())), random)
    return _inspection("slim/model.ckpt-7", whole, "model.ckpt-7")


def flags_of_command(random: Random, whole: Path) -> Attempt:
    """A command line; what comes after the flags are checked is left out."""
    main, words = random.choice(_COMMANDS)
    words = list(words)
    for _ in range(random.choice([1, 1, 2])):
        number = random.randrange(len(words))
        words[number] = mutations.mutated_text(words[number], random)

    def run() -> int:
        with mock.patch.object(deployment, "make_strategy", _end_of_the_checks):
            return main(words)

    return Attempt(run=run)


def split(random: Random, whole: Path) -> Attempt:
    """The name of a split."""
    name = mutations.mutated_text("train[1:5]+train[:50%]", random)

    def load(values: flags.FlagValues) -> int:
        datasets.load("birds", split=values.dataset_split_name, data_dir="records")
        return 0

    define_flags = functools.partial(input_pipeline.define_flags, split="train", batch_size=2)
    argv = [f"--dataset_split_name={name}"]
    return Attempt(
        run=lambda: command.run(load, define_flags=define_flags, argv=argv, description="")
    )


def environment(random: Random, whole: Path) -> Attempt:
    """What a platform says of the cluster."""
    environ = dict(random.choice(_ENVIRONMENTS))
    name = random.choice(sorted(environ))
    environ[name] = mutations.mutated_text(environ[name], random)

    def run() -> int:
        with mock.patch.dict(os.environ, environ):
            return kerasdist_main.main(["plan"])

    return Attempt(run=run)


Kind = Callable[[Random, Path], Attempt]
KINDS: Sequence[Kind] = (
    *(records, contents, picture, entry, names, model, checkpoint, slim_checkpoint),
    *(flags_of_command, flags_of_command, split, environment),
)


def write_expected(whole: Path) -> None:
    """Writes beside whole inputs what comes of them; the current folder holds a copy."""
    assert _convert("birds", "records", out=whole / "records_as_folder")() == 0
    assert predict.main(["--checkpoint_path=model/model.keras", "image.png"]) == 0


def _damage(path: Path, random: Random) -> None:
    path.write_bytes(mutations.mutated(path.read_bytes(), random))


def _convert(name: str, folder: str, *others: str, out: str | Path = _OUT) -> Callable[[], int]:
    argv = [f"--dataset_name={name}", f"--dataset_dir={folder}", f"--output_dir={out}", *others]
    return lambda: convert.main(argv)


def _images_in(folder: Path) -> set[tuple[str, bytes]]:
    return {(path.parent.name, path.read_bytes()) for path in folder.rglob("*.png")}


def _inspection(path: str, whole: Path, name: str) -> Attempt:
    """Compares all arrays of a checkpoint with those of the whole one."""

    def silent(stdout: str, stderr: str) -> str:
        is_named = name in stderr and "cannot be read" in stderr  # The one before is taken.
        is_equal = re.search(r"^\d+ arrays are equal, 0 differ$", stdout, re.MULTILINE)
        return "" if is_named or is_equal else f"other arrays: {stdout}"

    return Attempt(
        run=lambda: kerasdist_main.main(["inspect", path, str(whole / path)]),
        damaged=path.partition("/")[0],
        silent=silent,
    )


def _end_of_the_checks(values: flags.FlagValues, cluster: Any) -> None:
    """Stands in the place of what makes a strategy."""
    if "learning_rate" in values:
        rate = learning_rates.build(values, num_examples=9)
        float(rate(0))
        optimizers.build(values, learning_rate=rate)
    raise UsageError("There is no mistake in the flags.")


_DATA = ["--dataset_name=birds", "--dataset_dir=records"]
_COMMANDS: list[tuple[Callable[[Sequence[str]], int], list[str]]] = [
    (
        train.main,
        [
            *(*_DATA, "--train_dir=out", "--model_name=lenet", "--dataset_split_name=train[:80%]"),
            *("--batch_size=2", "--max_number_of_steps=3", "--learning_rate=0.01", "--seed=3"),
            *("--learning_rate_decay_type=polynomial", "--num_epochs_per_decay=2", "--master="),
            *("--optimizer=momentum", "--label_smoothing=0.1", "--gradient_multipliers=fc4=10"),
            *("--weight_decay=0.001", "--num_readers=2", "--num_clones=1", "--use_grayscale"),
            *("--worker_hosts=a:1,b:2", "--task_id=1", "--train_image_size=28", "--momentum=0.5"),
        ],
    ),
    (
        evaluate.main,
        [
            *(*_DATA, "--checkpoint_path=model", "--model_name=lenet", "--eval_dir=out"),
            *("--batch_size=2", "--max_num_batches=1", "--labels_offset=1", "--eval_image_size=28"),
            *("--preprocessing_name=lenet", "--num_preprocessing_threads=2"),
        ],
    ),
    (predict.main, ["--checkpoint_path=model", "--top_k=2", "image.png"]),
    (convert.main, [*_DATA, "--output_dir=out", "--form=tfrecords", "--num_shards=2"]),
    (
        migrate.main,
        ["--", "python", "train_image_classifier.py", "--num_clones=2", "--dataset_dir=a b"],
    ),
]
_TF_CONFIG = (
    '{"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]}, '
    '"task": {"type": "worker", "index": 1}}'
)
_ENVIRONMENTS: list[dict[str, str]] = [
    {"TF_CONFIG": _TF_CONFIG},
    {"TF_CONFIG": _TF_CONFIG},
    {
        "CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}, '
        '"task": {"type": "workerpool1", "index": 0}}'
    },
    {"KERASDIST_RANK": "1", "KERASDIST_NUM_PROCESSES": "3", "KERASDIST_ADDRESS": "a:1234"},
    {
        **{"SLURM_JOB_ID": "1234", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "5"},
        **{"SLURM_STEP_NODELIST": "n[9-10],m", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"},
    },
]


def tells(error: str, attempt: Attempt) -> bool:
    """Whether an error names the damaged file, or the example or split for which it stands."""
    return printable(attempt.damaged) in error or bool(
        re.search(r"of example \d+ \(from 0|has no examples", error)
    )
