"""The Inception trainers: research/inception of tensorflow/models."""

import math
from typing import Any

from absl import flags

from ..usage_error import UsageError
from .flag import CLONES, LOGGING, Flag, Program, default_is, not_default, same

_HEADS = "InceptionV3/Logits,InceptionV3/AuxLogits"
_NAMES = "checkpoints of the Inception trainers name variables in another way, and are not read"
_FIXED = {
    "dataset_name": "imagenet",
    "model_name": "inception_v3",
    "moving_average_decay": 0.9999,
}
_TRAINED = {
    **_FIXED,
    "label_smoothing": 0.1,
    "loss_averages_decay": 0.9,
    "preprocessing_name": "inception_full",
}
_DATA = {
    **LOGGING,
    "data_dir": Flag(default="/tmp/mydata", here="dataset_dir", always=default_is(None)),
    "num_preprocess_threads": Flag(default=4, here="num_preprocessing_threads"),
    "input_queue_memory_factor": Flag(
        default=16,
        otherwise="10,000 encoded examples are kept in memory, to shuffle them",
    ),
}
_TRAIN = {
    **_DATA,
    **same(batch_size=32, num_readers=4),
    "image_size": Flag(default=299, here="train_image_size"),
    "subset": Flag(default="train", here="dataset_split_name"),
    "log_device_placement": Flag(
        default=False,
        otherwise="the plan at the beginning says which devices are used",
        anyway=("False",),
    ),
}
_CLONES = {
    **_TRAIN,
    **not_default(None, train_dir="/tmp/imagenet_train"),
    **not_default(2.0, num_epochs_per_decay=30.0),
    **not_default(0.94, learning_rate_decay_factor=0.16),
    "batch_size": Flag(default=32, here="batch_size", always="there, 32 was divided by --num_gpus"),
    "max_steps": Flag(default=10_000_000, here="max_number_of_steps", always=default_is(None)),
    "num_gpus": Flag(default=1, here="num_clones", always=CLONES),
    "initial_learning_rate": Flag(default=0.1, here="learning_rate", always=default_is(0.01)),
    "fine_tune": Flag(
        default=False,
        otherwise=f"--checkpoint_exclude_scopes={_HEADS} keeps the initial weights of both "
        "classifiers",
        anyway=("False",),
    ),
    "pretrained_model_checkpoint_path": Flag(
        default="",
        here="checkpoint_path",
        otherwise=f"give slim's inception_v3.ckpt, which is the same net; {_NAMES}",
    ),
    "checkpoint_dir": Flag(
        default="",
        here="checkpoint_path",
        otherwise="--continue_training also takes the step, the slots of the optimizer and the "
        f"averages, of a checkpoint with slim's names; {_NAMES}",
    ),
}
_DISTRIBUTED = {
    **_TRAIN,
    **not_default(None, train_dir="/tmp/imagenet_train", save_summaries_secs=180),
    **same(num_epochs_per_decay=2.0, learning_rate_decay_factor=0.94, save_interval_secs=600),
    **same(job_name="", ps_hosts="", worker_hosts="", task_id=0),
    "num_replicas_to_aggregate": Flag(
        default=-1,
        here="num_replicas_to_aggregate",
        always="without it, workers of parameter servers train asynchronously",
    ),
    "max_steps": Flag(default=1_000_000, here="max_number_of_steps", always=default_is(None)),
    "initial_learning_rate": Flag(default=0.045, here="learning_rate", always=default_is(0.01)),
    "protocol": Flag(default="grpc", absent="TensorFlow 2 has gRPC alone", anyway=("grpc",)),
}
_EVAL = {
    **_DATA,
    **not_default(100, batch_size=32),
    **not_default(None, eval_dir="/tmp/imagenet_eval"),
    **{
        name: Flag(default=default, otherwise="files are read one after another, in their order")
        for name, default in (("num_readers", 4), ("input_queue_memory_factor", 16))
    },
    "image_size": Flag(default=299, here="eval_image_size"),
    "checkpoint_dir": Flag(
        default="/tmp/imagenet_train", here="checkpoint_path", always=default_is(None)
    ),
    **not_default(60, eval_interval_secs=300),
    "run_once": Flag(
        default=False,
        otherwise="models.evaluate runs once, unless --continuous is given",
        anyway=("True",),
    ),
    "num_examples": Flag(
        default=50_000, here="max_num_batches", always="without it, all examples are read"
    ),
    "subset": Flag(default="validation", here="dataset_split_name", always=default_is("test")),
}


def _of_clones(values: flags.FlagValues) -> dict[str, Any]:
    """Returns what was for all GPUs there, and is for each of them here."""
    number = values.num_gpus
    if number < 1 or values.batch_size % number:
        raise UsageError(
            f"--batch_size={values.batch_size} is that of all GPUs, and --num_gpus={number} does "
            "not divide it."
        )
    return {
        "batch_size": values.batch_size // number,
        # It is counted as if one clone read all data.
        "num_epochs_per_decay": values.num_epochs_per_decay / number,
        "log_every_n_steps": 10,
        "checkpoint_exclude_scopes": _HEADS if _fine_tunes(values) else None,
        "continue_training": True if values.checkpoint_dir else None,
    }


def _fine_tunes(values: flags.FlagValues) -> bool:
    return values.fine_tune and bool(values.pretrained_model_checkpoint_path)


def _of_distributed(values: flags.FlagValues) -> dict[str, Any]:
    lines = {"log_every_n_steps": 1}
    if not (values.ps_hosts and values.worker_hosts):
        return lines
    host = values.worker_hosts.partition(",")[0].rpartition(":")[0]
    addresses = f"{values.worker_hosts},{values.ps_hosts}".split(",")
    used = [
        int(port)
        for name, _, port in (each.rpartition(":") for each in addresses)
        if name == host and port.isdecimal()
    ]
    return {**lines, "chief_host": f"{host}:{max(used, default=2221) + 1}"}


def _of_eval(values: flags.FlagValues) -> dict[str, Any]:
    number = {"max_num_batches": math.ceil(values.num_examples / values.batch_size)}
    if values.run_once:
        return {**number, "eval_interval_secs": None}
    return {**number, "continuous": True}


_STATISTICS = (
    "Batch normalization has the statistics of the whole batch; there, each tower had its own, and "
    "the last one's were averaged."
)
_IMAGES = (
    "How an image is resized and in which order its colors are distorted is drawn for each image; "
    "there, each preprocessing thread had a way of its own."
)
_FLOWERS = (
    "The records of build_image_data.py are named as those of ImageNet, so --dataset_name=imagenet "
    "reads them. Put a labels.txt beside them, a line for each class: 0:background, 1:daisy, ..."
)
_NEW_AVERAGES = (
    "Leave out --moving_average_decay where --checkpoint_path has a model.keras, which holds the "
    "averages already."
)


def _trainer(*notes: str) -> Program:
    return Program(
        command="train",
        flags=_CLONES,
        fixed=_TRAINED,
        computed=_of_clones,
        notes=(
            "--batch_size is that of each clone; there, it was divided by --num_gpus. "
            "--num_epochs_per_decay counts as if one clone read all data, so it is divided, too.",
            "A checkpoint is written every --save_interval_secs, and summaries are if "
            "--save_summaries_secs is given; there, every 5000 and 100 steps. The newest two "
            "checkpoints are kept; --keep_checkpoints=5 keeps as many as there.",
            "The loss in the lines is that of all clones; there, of the last tower.",
            _STATISTICS,
            _IMAGES,
            *notes,
        ),
    )


def _evaluation(*notes: str) -> Program:
    return Program(
        command="evaluate",
        flags=_EVAL,
        fixed=_FIXED,
        computed=_of_eval,
        notes=(
            "Accuracy is precision @ 1, and Recall_5 recall @ 5. Each example counts once.",
            "Without --run_once, each new checkpoint of a training with models.train is measured.",
            _NEW_AVERAGES,
            *notes,
        ),
    )


_distributed = Program(
    command="train",
    flags=_DISTRIBUTED,
    fixed=_TRAINED,
    computed=_of_distributed,
    notes=(
        "The chief is a process of its own, beside worker 0: start the same command once more, "
        "with --job_name=chief and --task_id=0. It writes, and the workers compute.",
        "--chief_host needs a port that is free. On one machine, leave out --job_name, --task_id "
        "and all hosts: `python -m kerasdist launch --workers 2 --ps 1 -- python -m models.train "
        "...` starts all tasks.",
        "The rates in the lines are those of all workers; there, of each.",
        _IMAGES,
    ),
)
PROGRAMS = {
    "imagenet_train": _trainer(),
    "flowers_train": _trainer(_FLOWERS),
    "inception_train": _trainer(),
    "imagenet_distributed_train": _distributed,
    "inception_distributed_train": _distributed,
    "imagenet_eval": _evaluation(),
    "flowers_eval": _evaluation(_FLOWERS),
    "inception_eval": _evaluation(),
}
