"""Write a model for a serving process: `python -m models.export --help` lists the flags.

    python -m models.export --checkpoint_path=runs/first --export_dir=exported/1

Writes a SavedModel that TensorFlow Serving and `tf.saved_model.load` read without Keras and without
this package. Its signatures, both of any batch size:

    serving_default   images: float32 [batch, size, size, channels], as the net takes them
    encoded           images: string [batch], the contents of JPEG, PNG, BMP or GIF files

Both return logits and probabilities, float32 [batch, classes]. assets.extra/labels.txt holds the
names of the classes.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import flags

from . import command, legacy, saved_model
from .datasets.encoded_image import decode
from .preprocessing import Preprocess
from .typed_flags import define_text
from .usage_error import UsageError


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


def _export(values: flags.FlagValues) -> int:
    saved_model.path_of(values)  # Said first, if it is missing.
    if not values.export_dir:
        raise UsageError("--export_dir is missing. Say where to write, such as exported/1.")
    folder = Path(values.export_dir)
    if folder.exists():
        raise UsageError(f"--export_dir {str(folder)!r} exists already. Choose another one.")
    model, labels = saved_model.find(values)
    preprocess = saved_model.preprocess_of(model, values)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(folder, model, preprocess)
        if labels.is_file():
            (folder / "assets.extra").mkdir()
            shutil.copyfile(labels, folder / "assets.extra" / labels.name)
    except (OSError, tf.errors.OpError) as error:
        raise UsageError(f"--export_dir {str(folder)!r} cannot be written: {error}") from error
    print(f"Written: {folder}")
    return 0


def _write(folder: Path, model: keras.Model, preprocess: Preprocess) -> None:
    _, size, _, channels = model.input_shape

    def classify(images: tf.Tensor):
        logits = model(images, training=False)
        return {"logits": logits, "probabilities": keras.ops.softmax(logits)}

    def read(content: tf.Tensor):
        return preprocess(decode(content, channels=channels), image_size=size, seed=None)

    def classify_encoded(images: tf.Tensor):
        shape = tf.TensorSpec([size, size, channels], tf.float32)
        return classify(tf.map_fn(read, images, fn_output_signature=shape))

    archive = keras.export.ExportArchive()
    archive.track(model)
    for name, function, spec in (
        ("serving_default", classify, tf.TensorSpec([None, size, size, channels], name="images")),
        ("encoded", classify_encoded, tf.TensorSpec([None], tf.string, name="images")),
    ):
        archive.add_endpoint(name, function, input_signature=[spec])
    archive.write_out(str(folder), verbose=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
