"""What is exported predicts in the runtimes of others what the model predicts."""

import importlib

import keras
import numpy as np
import pytest

from models import nets
from models.exports import runtimes
from models.nets import auxiliary
from tests.libraries.examples import example, needs, on_each, run

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
# A net for each kind of layers, with the smallest images that it takes.
NETS = {"alexnet_v2": 224, "cifarnet": 32, "inception_v3": 107, "mobilenet_v2": 32}
NETS |= {"mobilenet_v3_small": 32, "resnet_v2_50": 32}


@on_each
@needs("ai_edge_litert", "onnxruntime", "tf2onnx")
def test_exported_models_predict_alike(deployment):
    run(example("Export"), deployment)

    expected = np.load("expected-True.npy")
    np.testing.assert_allclose(predict_by_onnx("model.onnx", X), expected, atol=1e-5)
    np.testing.assert_allclose(predict_by_litert("model.tflite", X), expected, atol=1e-5)


@needs("ai_edge_litert", "onnxruntime", "tf2onnx")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "cifarnet")) for name in NETS],
)
def test_nets_of_the_application_predict_alike(name, folder):
    size = NETS[name]
    keras.utils.set_random_seed(0)
    model = auxiliary.classifier_of(
        nets.build(name, num_classes=5, weight_decay=0.0, image_size=size)
    )
    images = np.random.default_rng(0).uniform(-1, 1, (3, size, size, 3)).astype("float32")
    expected = model.predict(images, verbose=0)

    runtimes.write_onnx(folder / "onnx", model)
    runtimes.write_litert(folder / "litert", model)

    for predict, path in (
        (predict_by_onnx, "onnx/model.onnx"),
        (predict_by_litert, "litert/model.tflite"),
    ):
        found = predict(str(folder / path), images)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def predict_by_onnx(path: str, x: np.ndarray) -> np.ndarray:
    session = importlib.import_module("onnxruntime").InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def predict_by_litert(path: str, x: np.ndarray) -> np.ndarray:
    interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter(path)
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(made["index"])
