"""A file for a runtime without TensorFlow: ONNX, or LiteRT, which was TensorFlow Lite."""

import importlib.util
import warnings
from pathlib import Path

import keras

from ..usage_error import UsageError

_OF_ONNX = ("onnx", "tf2onnx")


def write_onnx(folder: Path, model: keras.Model) -> None:
    """Writes model.onnx, of images to logits, into a folder that is made here.

    Raises:
        UsageError: A package is missing.
    """
    absent = [name for name in _OF_ONNX if importlib.util.find_spec(name) is None]
    if absent:
        raise UsageError(
            f"--form=onnx needs {' and '.join(absent)}: pip install {' '.join(_OF_ONNX)}"
        )
    folder.mkdir()
    with warnings.catch_warnings():
        # Keras gives NumPy names that tf2onnx still uses.
        warnings.filterwarnings("ignore", "In the future `np", FutureWarning)
        model.export(str(folder / "model.onnx"), format="onnx", verbose=False)


def write_litert(folder: Path, model: keras.Model) -> None:
    """Writes model.tflite, of images to logits, into a folder that is made here.

    Raises:
        UsageError: This Keras is too old for it.
    """
    folder.mkdir()
    try:
        model.export(str(folder / "model.tflite"), format="litert", verbose=False)
    except ValueError as error:
        if "format=litert" not in str(error):
            raise
        raise UsageError(f"--form=litert needs Keras 3.13. This is {keras.version()}.") from error
