"""`python -m models.export --form=...`: what other programs read is what the model computes."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import export, nets, weights
from models.exports import slim_checkpoint
from models.files import labels
from models.files.train_dir import TrainDir
from models.usage_error import UsageError

pytestmark = pytest.mark.thorough

IMAGES = np.random.default_rng(0).uniform(-1, 1, (3, 28, 28, 1)).astype("float32")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has saved its model, and the checkpoint of step 4."""
    folder = TrainDir(tmp_path_factory.mktemp("run"))
    keras.utils.set_random_seed(0)
    folder.save(nets.build("lenet", num_classes=10, weight_decay=0.0))
    (folder.checkpoints / "step-00000004").mkdir(parents=True)
    labels.write(folder.labels, tuple("0123456789"))
    return folder


@pytest.fixture
def model(run):
    return keras.saving.load_model(run.model)


def exported(run, folder, form):
    path = folder / form
    assert (
        export.main([f"--checkpoint_path={run.path}", f"--export_dir={path}", f"--form={form}"])
        == 0
    )
    assert (path / "labels.txt").read_text().startswith("0:0\n")
    assert [each.name for each in folder.iterdir()] == [form]  # Nothing incomplete is left.
    return path


def test_a_name_based_checkpoint_has_slims_names_and_the_step(run, model, tmp_path):
    folder = exported(run, tmp_path, "slim")

    prefix = tf.train.latest_checkpoint(str(folder))
    assert prefix == str(folder / "model.ckpt-4")
    layers = ("conv1", "conv2", "fc3", "fc4")
    names = {f"LeNet/{layer}/{kind}" for layer in layers for kind in ("weights", "biases")}
    assert dict(tf.train.list_variables(prefix)).keys() == names | {"global_step"}
    # As slim's programs do.
    kernels = {f"LeNet/{name}/weights": model.get_layer(name).kernel.numpy() for name in layers}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = {
            name: tf.compat.v1.get_variable(name, value.shape) for name, value in kernels.items()
        }
        step = tf.compat.v1.train.get_or_create_global_step()
        tf.compat.v1.train.Saver().restore(session, prefix)
        found = session.run(made)
        assert session.run(step) == 4
    for name, value in kernels.items():
        np.testing.assert_array_equal(found[name], value)
    # As the commands here do.
    again = weights.net("lenet", prefix)
    np.testing.assert_allclose(again(IMAGES), model(IMAGES), atol=1e-6)


def test_nets_without_slims_layers_have_no_such_checkpoint(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)], name="nasnet_mobile")

    with pytest.raises(UsageError, match=r"the layers of 'nasnet_mobile' have others. Choose ano"):
        slim_checkpoint.write(tmp_path / "slim", model, step=0)
    assert not (tmp_path / "slim").exists()


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_litert_computes_what_the_model_does(run, model, tmp_path):
    path = exported(run, tmp_path, "litert") / "model.tflite"

    interpreter = tf.lite.Interpreter(str(path))
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], IMAGES.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], IMAGES)
    interpreter.invoke()
    found = interpreter.get_tensor(made["index"])
    np.testing.assert_allclose(found, model(IMAGES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--form=onnx"], "--form=onnx needs onnx and tf2onnx: pip install onnx tf2onnx"),
        (["--form=onnx", "--preprocessing_name=vgg"], "--preprocessing_name is for --form=saved_"),
        (["--form=pb"], "value should be one of <saved_model|onnx|litert|slim>"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(flags, message, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "exported"

    assert export.main([f"--checkpoint_path={run.path}", f"--export_dir={path}", *flags]) == 2

    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
