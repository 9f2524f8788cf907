"""What is damaged: a small one of each input of the programs, whole.

A folder of them holds:

records/    TFRecords in slim's format, with labels.txt
pictures/   a folder of images
model/      a model of Keras, with labels.txt
run/        checkpoints of callbacks.Checkpoint
slim/       a checkpoint of TF-Slim
image.png   an image to classify
"""

import io
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

import kerasdist
from models.datasets import slim_records
from models.files import labels

CLASSES = ("crow", "jay", "owl")
# Format and mode: gray, the colors of print, 16 bits, a palette, transparent.
_KINDS = [
    *(("png", "RGB"), ("jpeg", "RGB"), ("png", "L"), ("jpeg", "CMYK"), ("png", "I;16")),
    *(("gif", "P"), ("bmp", "RGB"), ("png", "RGBA"), ("jpeg", "L")),
]


def write(folder: Path) -> None:
    """Writes all inputs into a folder."""
    for name in ("records", "pictures", "model", "slim"):
        (folder / name).mkdir(parents=True)
    pictures = [_picture(number, *kind) for number, kind in enumerate(_KINDS)]
    _write_records(folder / "records", pictures)
    for number, (content, (format, _)) in enumerate(zip(pictures, _KINDS, strict=True)):
        path = folder / "pictures/train" / CLASSES[number % 3] / f"{number}.{format}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "image.png").write_bytes(pictures[2])
    _write_model(folder / "model")
    _write_run(folder / "run")
    tf.raw_ops.SaveV2(
        prefix=str(folder / "slim/model.ckpt-7"),
        tensor_names=["LeNet/fc4/biases", "LeNet/fc4/weights"],
        shape_and_slices=["", ""],
        tensors=[tf.range(3.0), tf.reshape(tf.range(12.0), [4, 3])],
    )


def _picture(number: int, format: str, mode: str) -> bytes:
    values = np.random.default_rng(number).integers(0, 256, (6, 7, 3), "uint8")
    image = Image.fromarray(values)
    image = Image.fromarray(values[..., 0].astype("uint16") * 257) if mode == "I;16" else image
    file = io.BytesIO()
    (image if mode == "I;16" else image.convert(mode)).save(file, format)
    return file.getvalue()


def _write_records(folder: Path, pictures: list[bytes]) -> None:
    labels.write(folder / labels.FILE, CLASSES)
    examples = [
        slim_records.Encoded(content, 6, 7, number % len(CLASSES))
        for number, content in enumerate(pictures)
    ]
    slim_records.write(folder / "birds_train.tfrecord", examples)


def _write_model(folder: Path) -> None:
    """Writes one that is small, under the name of a net, which says how images are prepared."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(len(CLASSES))]
    keras.Sequential(layers, name="lenet").save(folder / "model.keras")
    labels.write(folder / labels.FILE, CLASSES)


def _write_run(folder: Path) -> None:
    with kerasdist.make_strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
        model.compile("adam", "mse")
    x = np.ones((8, 4), "float32")
    checkpoint = kerasdist.callbacks.Checkpoint(folder, every_steps=2)
    model.fit(x, x[:, :2], batch_size=2, callbacks=[checkpoint], verbose=0)
