"""The model of a run, for the commands that use it."""

import zipfile
from pathlib import Path

import keras
from absl import flags

from . import nets, own_parts, preprocessing, weights
from .files.train_dir import TrainDir
from .typed_flags import define_text
from .usage_error import UsageError, in_one_line

_MOST = 500  # Characters of what Keras says, which may be a whole configuration.
_MODELS = (".keras", ".h5", ".hdf5")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags that say which model is used."""
    define_text(
        values,
        "checkpoint_path",
        None,
        "The model: a --train_dir, a .keras file or, with --model_name, a checkpoint, also of "
        "TF-Slim.",
    )
    define_text(
        values, "model_name", None, "The net that the model must be. Default: what its file says."
    )


def define_preprocessing_flag(values: flags.FlagValues) -> None:
    """Defines the flag that says how the images of the model are prepared."""
    define_text(
        values, "preprocessing_name", None, "How images are prepared. Default: as the net needs it."
    )


def path_of(values: flags.FlagValues) -> Path | None:
    """Returns the file of the model that --checkpoint_path names.

    None if there are only weights, such as those of a checkpoint, and --model_name says of what.

    Raises:
        UsageError: There is neither.
    """
    if not values.checkpoint_path:
        raise UsageError("--checkpoint_path is missing: a --train_dir, or a .keras file.")
    path = Path(values.checkpoint_path)
    model_path = TrainDir(path).model if path.is_dir() else path
    if model_path.is_file() and _is_model(model_path):
        return model_path
    if values.model_name:
        return None
    raise UsageError(
        f"--checkpoint_path {str(path)!r}: there is no model {model_path}. Train one with "
        "python -m models.train. For weights, such as a checkpoint of TF-Slim or of a training, "
        "add --model_name."
    )


def find(values: flags.FlagValues) -> tuple[keras.Model, Path]:
    """Returns the model of the flags, not compiled, and where the names of its classes are.

    Raises:
        UsageError: There is none.
    """
    path = path_of(values)
    if path:
        return load(path), TrainDir(path.parent).labels
    model = weights.net(values.model_name, values.checkpoint_path)
    return model, weights.labels_at(values.checkpoint_path)


def load(path: Path) -> keras.Model:
    """Returns the model in a file, not compiled.

    Raises:
        UsageError: It is not a model, or is damaged.
    """
    try:
        _check_sums(path)
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras makes of the file whatever layers it describes.
        raise UsageError(
            f"--checkpoint_path {str(path)!r} is not a Keras model: {in_one_line(error)[:_MOST]}"
        ) from error


def _check_sums(path: Path) -> None:
    """Checks the sums in a file of Keras, which reads on if that of the weights is wrong."""
    if path.suffix != ".keras":
        return
    with zipfile.ZipFile(path) as archive:
        if name := archive.testzip():
            raise zipfile.BadZipFile(f"{name!r} in it is damaged.")


def preprocess_of(model: keras.Model, values: flags.FlagValues) -> preprocessing.Preprocess:
    """Returns how the images of a model are prepared.

    Raises:
        UsageError: Neither the flags nor its name say so, or it is not the net of --model_name.
    """
    if values.model_name and model.name in nets.NETS and model.name != values.model_name:
        raise UsageError(
            f"--model_name {values.model_name!r}: the model is a {model.name}. Leave the flag out."
        )
    if values.preprocessing_name:
        return preprocessing.find(values.preprocessing_name)
    name = values.model_name or model.name
    if name not in nets.NETS and not own_parts.is_own(name):
        raise UsageError(
            f"The model is named {name!r}, which is not a net of this application. Say how its "
            f"images are prepared: --preprocessing_name={'|'.join(preprocessing.PREPROCESSINGS)}."
        )
    return preprocessing.find(nets.find(name).preprocessing)


def _is_model(path: Path) -> bool:
    return path.suffix in _MODELS and not path.name.endswith(".weights.h5")
