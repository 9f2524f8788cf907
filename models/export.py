"""Write a model for where it is used: `python -m models.export --help` lists the flags.

    python -m models.export --checkpoint_path=runs/first --export_dir=exported/1

Writes a SavedModel that TensorFlow Serving and `tf.saved_model.load` read without Keras and without
this package. Its signatures, both of any batch size:

    serving_default   images: float32 [batch, size, size, channels], as the net takes them
    encoded           images: string [batch], the contents of JPEG, PNG, BMP or GIF files

Both return logits and probabilities, float32 [batch, classes]. assets.extra/labels.txt holds the
names of the classes. Other forms have labels.txt beside them:

    --form=onnx       model.onnx, of images as the net takes them to logits
    --form=litert     model.tflite, the same for LiteRT, which was TensorFlow Lite
    --form=slim       model.ckpt-<step>, a checkpoint for the programs of TF-Slim
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import flags

from . import command, legacy, saved_model, weights
from .exports import runtimes, serving, slim_checkpoint
from .typed_flags import define_text
from .usage_error import UsageError

_FORMS = ("saved_model", "onnx", "litert", "slim")


def main(argv: Sequence[str]) -> int:
    """Exports as the flags `argv` say and returns the exit code."""
    return command.run(
        _export,
        define_flags=define_flags,
        argv=argv,
        description=__doc__,
        replaces=legacy.flags_of("export"),
    )


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    saved_model.define_flags(values)
    saved_model.define_preprocessing_flag(values)
    define_text(values, "export_dir", None, "The folder to write. It must not exist yet.")
    flags.DEFINE_enum("form", _FORMS[0], _FORMS, "What to write.", flag_values=values)


def _export(values: flags.FlagValues) -> int:
    saved_model.path_of(values)  # Said first, if it is missing.
    if not values.export_dir:
        raise UsageError("--export_dir is missing. Say where to write, such as exported/1.")
    if values.preprocessing_name and values.form != _FORMS[0]:
        raise UsageError(
            f"--preprocessing_name is for --form={_FORMS[0]}: what --form={values.form} writes "
            "takes images as the net does. Leave it out."
        )
    folder = Path(values.export_dir)
    if folder.exists():
        raise UsageError(f"--export_dir {str(folder)!r} exists already. Choose another one.")
    model, labels = saved_model.find(values)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # It has its name when it is whole.
        with tempfile.TemporaryDirectory(prefix=".incomplete_", dir=folder.parent) as incomplete:
            written = Path(incomplete) / folder.name
            _write(written, model, values)
            _copy_labels(labels, written, values)
            written.rename(folder)
    except (OSError, tf.errors.OpError) as error:
        raise UsageError(f"--export_dir {str(folder)!r} cannot be written: {error}") from error
    print(f"Written: {folder}")
    return 0


def _write(folder: Path, model: keras.Model, values: flags.FlagValues) -> None:
    if values.form == "onnx":
        runtimes.write_onnx(folder, model)
    elif values.form == "litert":
        runtimes.write_litert(folder, model)
    elif values.form == "slim":
        slim_checkpoint.write(folder, model, step=weights.step_at(values.checkpoint_path))
    else:
        serving.write(folder, model, saved_model.preprocess_of(model, values))


def _copy_labels(labels: Path, folder: Path, values: flags.FlagValues) -> None:
    if not labels.is_file():
        return
    target = folder / "assets.extra" if values.form == _FORMS[0] else folder
    target.mkdir(exist_ok=True)
    shutil.copyfile(labels, target / labels.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
