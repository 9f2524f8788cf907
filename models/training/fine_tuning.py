"""Training that begins with the weights of another run, and may train only some of them."""

import functools

import keras
from absl import flags

from kerasdist import callbacks

from .. import layer_scopes, weights
from ..files.train_dir import TrainDir
from ..typed_flags import define_text
from ..usage_error import UsageError


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
    text("trainable_scopes", None, "Comma-separated layers to train. Default: all.")
    flags.DEFINE_bool(
        "ignore_missing_vars",
        False,
        "Accept that --checkpoint_path has no weights for some layers.",
        flag_values=values,
    )


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    if values.checkpoint_exclude_scopes and not values.checkpoint_path:
        raise UsageError(
            "--checkpoint_exclude_scopes needs --checkpoint_path: without it, all layers keep "
            "their initial weights."
        )


def start(values: flags.FlagValues, model: keras.Model, train_dir: TrainDir) -> None:
    """Gives `model` the weights that the flags name, unless the run resumes from its own.

    Raises:
        UsageError: There are none, or they do not fit the model.
    """
    if not values.checkpoint_path:
        return
    if train_dir.is_begun and not values.overwrite:
        print(
            "Ignoring --checkpoint_path because a checkpoint already exists in "
            f"{train_dir.checkpoints}"
        )
        return
    scopes = _scopes(values.checkpoint_exclude_scopes)
    weights.start(
        model,
        values.checkpoint_path,
        advice="--checkpoint_exclude_scopes leaves layers out, and --ignore_missing_vars accepts "
        "that some have no weights.",
        exclude=layer_scopes.patterns("--checkpoint_exclude_scopes", scopes, model),
        ignore_missing=values.ignore_missing_vars,
    )


def build(values: flags.FlagValues, model: keras.Model) -> list[keras.callbacks.Callback]:
    """Returns the callback that trains only the layers of --trainable_scopes, if there are any.

    Raises:
        UsageError: The model does not have a scope.
    """
    scopes = _scopes(values.trainable_scopes)
    patterns = layer_scopes.patterns("--trainable_scopes", scopes, model)
    return [callbacks.TrainableScopes(patterns)] if patterns else []


def _scopes(text: str | None) -> list[str]:
    return [scope.strip() for scope in (text or "").split(",") if scope.strip()]
