"""Weights of a training, a file of Keras or a checkpoint of TF-Slim, put into a net."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import kerasdist

from . import nets
from .files import labels
from .files.train_dir import TrainDir
from .nets import auxiliary, slim_names
from .usage_error import UsageError

_UNUSUAL = 1009  # A number of classes by which the layers of the logits can be told.
# What `kerasdist.warm_start` says to do is for programs.
_ADVICE = re.compile(r" (Leave (these variables|them) out with `exclude`|Use `rename`).*$")


def start(
    model: keras.Model,
    path: str,
    *,
    flag: str = "",
    advice: str = "Are they of another net?",
    **options: Any,
) -> Mapping[str, str]:
    """Gives a net the weights at the path of --checkpoint_path.

    Args:
        model: The net.
        path: As the person wrote it.
        flag: The one that names them, with its value. Default: --checkpoint_path.
        advice: What to do if they do not fit the model.
        **options: Further arguments of `kerasdist.warm_start`.

    Returns:
        The names in the source, by the paths of the variables that got their values.

    Raises:
        UsageError: There are none, or they do not fit the model.
    """
    source = TrainDir.weights_at(path)
    rename = slim_names.RENAME if slim_names.are_slims(_shapes(source)) else None
    try:
        return kerasdist.warm_start(model, source, rename=rename, **options).restored
    except ValueError as error:
        told = _ADVICE.sub(f" {advice}", str(error))
        raise UsageError(f"{flag or f'--checkpoint_path {path!r}'}: {told}") from error


def net(name: str, path: str) -> keras.Model:
    """Returns the net `name` with the weights at a path, for as many classes as they are for.

    Raises:
        UsageError: There are none, or they do not fit the net.
    """
    model = nets.build(name, num_classes=_num_classes(name, path), weight_decay=0.0)
    model = auxiliary.classifier_of(model)
    start(model, path)
    return model


def step_at(path: str) -> int:
    """Returns the step that the name of a checkpoint says; 0 if it says none."""
    step = TrainDir(Path(path)).newest_step
    match = re.search(r"-(\d+)$", path.rstrip("/"))
    return step or (int(match[1]) if match else 0)


def labels_at(path: str) -> Path:
    """Returns where the names of the classes are, if there are any."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    for run in folder.parent, folder.parent.parent:
        if folder.is_relative_to(TrainDir(run).checkpoints):
            return TrainDir(run).labels
    return TrainDir(folder).labels


def _num_classes(name: str, path: str) -> int:
    model = auxiliary.classifier_of(nets.build(name, num_classes=_UNUSUAL, weight_decay=0.0))
    logits = {_layer(each.path) for each in model.weights if each.shape[-1] == _UNUSUAL}
    for each, shape in _shapes(TrainDir.weights_at(path)).items():
        if _layer(re.sub(*slim_names.RENAME[0], each)) in logits:
            return shape[-1]
    file = labels_at(path)
    if not labels.count(file):
        raise UsageError(
            f"--checkpoint_path {path!r} does not say how many classes there are. Write their "
            f"names to {file}, one line such as 0:daisy for each."
        )
    return labels.count(file)


def _layer(path: str) -> str:
    return path.rpartition("/")[0]


def _shapes(path: str) -> dict[str, list[int]]:
    """Returns the shapes in a checkpoint of TensorFlow by name; {} for other files."""
    try:
        return dict(tf.train.list_variables(path))
    except (tf.errors.OpError, ValueError):
        return {}
