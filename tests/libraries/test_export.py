"""What is exported under a strategy predicts in the runtimes of others what the model predicts."""

import importlib

import numpy as np

from tests.libraries.examples import example, needs, on_each, run

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


@on_each
@needs("ai_edge_litert", "onnxruntime", "tf2onnx")
def test_exported_models_predict_alike(deployment):
    run(example("Export"), deployment)

    expected = np.load("expected-True.npy")
    np.testing.assert_allclose(predict_by_onnx("model.onnx"), expected, atol=1e-5)
    np.testing.assert_allclose(predict_by_litert("model.tflite"), expected, atol=1e-5)


def predict_by_onnx(path):
    session = importlib.import_module("onnxruntime").InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: X})[0]


def predict_by_litert(path):
    interpreter = importlib.import_module("ai_edge_litert.interpreter").Interpreter(path)
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], X.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], X)
    interpreter.invoke()
    return interpreter.get_tensor(made["index"])
