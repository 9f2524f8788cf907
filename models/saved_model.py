"""The model of a run, as the commands that use it find it."""

from pathlib import Path

import keras
from absl import flags

from models import nets, preprocessing
from models.train_dir import TrainDir
from models.usage_error import UsageError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags that say which model, and how its images are prepared."""
    flags.DEFINE_string(
        "checkpoint_path", None, "A --train_dir, or a .keras file.", flag_values=values
    )
    flags.DEFINE_string(
        "model_name",
        None,
        "The net that the model has to be. Default: any; it says itself which it is.",
        flag_values=values,
    )


def path_of(values: flags.FlagValues) -> Path:
    """Returns the file of the model that --checkpoint_path names.

    Raises:
        UsageError: There is none.
    """
    if not values.checkpoint_path:
        raise UsageError("--checkpoint_path is missing: a --train_dir, or a .keras file.")
    path = Path(values.checkpoint_path)
    model_path = TrainDir(path).model if path.is_dir() else path
    if not model_path.is_file():
        raise UsageError(
            f"--checkpoint_path {str(path)!r}: there is no model {model_path}. Train one with "
            "python -m models.train."
        )
    return model_path


def load(path: Path) -> keras.Model:
    """Returns the model in a file, not compiled.

    Raises:
        UsageError: It is no model.
    """
    try:
        return keras.saving.load_model(path, compile=False)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(
            f"--checkpoint_path {str(path)!r} is not a Keras model: {error}"
        ) from error


def preprocess_of(model: keras.Model, values: flags.FlagValues) -> preprocessing.Preprocess:
    """Returns how the images of a model are prepared.

    Raises:
        UsageError: Neither the flags nor its name say so; it is another net than --model_name.
    """
    if values.model_name and model.name in nets.NETS and model.name != values.model_name:
        raise UsageError(
            f"--model_name {values.model_name!r}: the model is a {model.name}. Leave the flag out."
        )
    if values.preprocessing_name:
        return preprocessing.find(values.preprocessing_name)
    name = values.model_name or model.name
    if name not in nets.NETS:
        raise UsageError(
            f"The model is named {name!r}, which is no net of ours. Say how its images are "
            f"prepared: --preprocessing_name={'|'.join(preprocessing.PREPROCESSINGS)}."
        )
    return preprocessing.find(nets.find(name).preprocessing)
