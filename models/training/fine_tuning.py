"""Training that begins with the weights of another run, and may train only some of them."""

import functools
import re

import keras
import numpy as np
from absl import flags

import kerasdist
from kerasdist import callbacks

from .. import layer_scopes, weights
from ..files.train_dir import TrainDir
from ..typed_flags import define_text
from ..usage_error import UsageError
from . import slim_run


def define_flags(values: flags.FlagValues) -> None:
    """Defines slim's flags for fine-tuning."""
    text = functools.partial(define_text, values)

    text(
        "checkpoint_path",
        None,
        "Weights to begin with: a --train_dir, a file of Keras, or a checkpoint of TF-Slim.",
    )
    text(
        "checkpoint_exclude_scopes",
        None,
        "Comma-separated layers that do not take their weights from --checkpoint_path.",
    )
    flags.DEFINE_bool(
        "continue_training",
        False,
        "Take from --checkpoint_path, of TF-Slim, also the step, the slots of the optimizer and "
        "the moving averages.",
        flag_values=values,
    )
    text("trainable_scopes", None, "Comma-separated layers to train. Default: all.")
    flags.DEFINE_bool(
        "ignore_missing_vars",
        False,
        "Accept that --checkpoint_path has no weights for some layers.",
        flag_values=values,
    )


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    if values.checkpoint_path and not values.continue_training:
        return
    if values.continue_training and not values.checkpoint_path:
        raise UsageError("--continue_training needs --checkpoint_path, a training of TF-Slim.")
    if values.checkpoint_exclude_scopes and values.continue_training:
        raise UsageError("--continue_training takes all: leave --checkpoint_exclude_scopes out.")
    if values.checkpoint_exclude_scopes:
        raise UsageError(
            "--checkpoint_exclude_scopes needs --checkpoint_path: without it, all layers keep "
            "their initial weights."
        )


def start(
    values: flags.FlagValues, model: keras.Model, train_dir: TrainDir
) -> dict[str, np.ndarray]:
    """Gives `model` the weights that the flags name, unless the run resumes from its own.

    A training of TF-Slim, in --train_dir or with --continue_training, goes on at its step.

    Returns:
        Moving averages by path, those of such a training; {} for others.

    Raises:
        UsageError: There are none, or they do not fit the model.
    """
    resumes = train_dir.is_begun and not values.overwrite
    in_train_dir = _slim_run_in(train_dir, values)
    is_ignored = values.checkpoint_path and (in_train_dir or resumes)
    if is_ignored and not values.continue_training and kerasdist.is_chief():
        print(
            "Ignoring --checkpoint_path because a checkpoint already exists in "
            f"{in_train_dir or train_dir.checkpoints}"
        )
    if in_train_dir or values.continue_training:
        name = "train_dir" if in_train_dir else "checkpoint_path"
        return slim_run.restore(
            model,
            in_train_dir or values.checkpoint_path,
            values,
            flag=f"--{name} {values[name].value!r}",
            only_step=resumes,
        )
    if values.checkpoint_path and not resumes:
        _start_with_weights(values, model)
    return {}


def _slim_run_in(train_dir: TrainDir, values: flags.FlagValues) -> str | None:
    found = slim_run.find(train_dir.path)
    if found and values.overwrite:
        raise UsageError(
            f"--overwrite does not replace {found}, which is of TF-Slim. Choose another "
            "--train_dir, or remove it."
        )
    return found


def _start_with_weights(values: flags.FlagValues, model: keras.Model) -> None:
    scopes = _scopes(values.checkpoint_exclude_scopes)
    weights.start(
        model,
        values.checkpoint_path,
        advice="--checkpoint_exclude_scopes leaves layers out, and --ignore_missing_vars accepts "
        "that some have no weights.",
        exclude=layer_scopes.patterns_of_some("--checkpoint_exclude_scopes", scopes, model),
        ignore_missing=values.ignore_missing_vars,
    )


def build(values: flags.FlagValues, model: keras.Model) -> list[keras.callbacks.Callback]:
    """Returns the callback that trains only the layers of --trainable_scopes, if there are any.

    Raises:
        UsageError: The model does not have a scope.
    """
    patterns = _trained(values, model)
    return [callbacks.TrainableScopes(patterns)] if patterns else []


def describe(values: flags.FlagValues, model: keras.Model) -> dict[str, str]:
    """Returns a line for the plan: how many variables --trainable_scopes trains."""
    patterns = _trained(values, model)
    paths = [variable.path for variable in model.trainable_variables]
    number = sum(any(re.fullmatch(each, path) for each in patterns) for path in paths)
    told = f"{number} of {len(paths)} variables, those of --trainable_scopes"
    return {"trained": told} if patterns else {}


def _trained(values: flags.FlagValues, model: keras.Model) -> list[str]:
    scopes = _scopes(values.trainable_scopes)
    return layer_scopes.patterns("--trainable_scopes", scopes, model)


def _scopes(text: str | None) -> list[str]:
    return [scope.strip() for scope in (text or "").split(",") if scope.strip()]
