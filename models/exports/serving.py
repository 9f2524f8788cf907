"""A SavedModel, which TensorFlow Serving reads without Keras and without this package."""

from pathlib import Path

import keras
import tensorflow as tf

from ..datasets.encoded_image import decode
from ..preprocessing import Preprocess


def write(folder: Path, model: keras.Model, preprocess: Preprocess) -> None:
    """Writes a model with the signatures `serving_default` and `encoded`.

    Args:
        folder: Made here.
        model: Of images to logits.
        preprocess: What makes its images of those in files.
    """
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
