"""`--checkpoint_path` without a model: checkpoints of TF-Slim and of a training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks
from models import evaluate, export, nets, predict, weights
from models.files import labels

pytestmark = pytest.mark.thorough

NET = "--model_name=lenet"


@pytest.fixture(scope="module")
def model():
    """A net whose accuracy depends on its weights."""
    keras.utils.set_random_seed(3)
    with kerasdist.make_strategy().scope():
        model = nets.build("lenet", num_classes=10, weight_decay=0.0)
        model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def slim(model, tmp_path_factory):
    """The prefix of a checkpoint of slim: weights of zeros, and the model's as averages."""
    kinds = {"kernel": "weights", "bias": "biases"}
    values = {each.path: each.numpy() for each in model.weights}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for path, value in values.items():
            layer, kind = path.split("/")
            name = f"LeNet/{layer}/{kinds[kind]}"
            tf.compat.v1.get_variable(name, initializer=np.zeros_like(value))
            tf.compat.v1.get_variable(f"{name}/ExponentialMovingAverage", initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        path = str(tmp_path_factory.mktemp("slim") / "model.ckpt")
        return tf.compat.v1.train.Saver().save(session, path, global_step=7)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The --train_dir of a training that has left a checkpoint and no model."""
    path = tmp_path_factory.mktemp("run")
    with kerasdist.make_strategy().scope():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy.compile(keras.optimizers.SGD(0.0), "mse")
    images, targets = np.zeros([1, 28, 28, 1], "float32"), np.zeros([1, 10], "float32")
    checkpoint = callbacks.Checkpoint(path / "checkpoints")
    copy.fit(images, targets, callbacks=[checkpoint], verbose=0)
    labels.write(path / "labels.txt", tuple(f"digit {number}" for number in range(10)))
    return path


def test_checkpoints_are_evaluated_like_the_model(model, slim, run, data_dir, tmp_path, capsys):
    model.save(tmp_path / "model.keras")
    data = ["--dataset_name=digits", f"--dataset_dir={data_dir}"]

    def results(path, *flags):
        assert evaluate.main([*data, f"--checkpoint_path={path}", *flags]) == 0
        return capsys.readouterr().out.partition("  Accuracy")[2].partition("Written")[0]

    expected = results(tmp_path / "model.keras")
    assert results(run, NET) == expected
    assert results(run / "checkpoints/step-00000001", NET) == expected
    eval_dir = f"--eval_dir={tmp_path / 'eval'}"
    assert results(slim, NET, "--moving_average_decay=0.9", eval_dir) == expected
    assert '{"step": 7, ' in (tmp_path / "eval/evaluations.jsonl").read_text()
    assert results(slim, NET) != expected


def test_without_the_name_of_the_net_the_error_says_the_way_out(slim, run, data_dir, capsys):
    for path in slim, run:
        data = ["--dataset_name=digits", f"--dataset_dir={data_dir}"]
        assert evaluate.main([*data, f"--checkpoint_path={path}"]) == 2
        assert "add --model_name." in capsys.readouterr().err
        flags = [f"--checkpoint_path={path}", NET, "--eval_image_size=3"]
        assert evaluate.main([*data, *flags]) == 2
        assert "--eval_image_size=3 is too small for lenet." in capsys.readouterr().err
        flags = [f"--checkpoint_path={path}", "--model_name=cifarnet", "--eval_image_size=28"]
        assert evaluate.main([*data, *flags]) == 2
        assert capsys.readouterr().err.endswith(". Are they of another net?\n")


def test_the_first_format_of_tensorflow_is_read_which_is_that_of_slims_own_files(model, tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for layer, shape in ("fc4/weights", [1024, 10]), ("fc4/biases", [10]):
            tf.compat.v1.get_variable(f"LeNet/{layer}", initializer=tf.ones(shape))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(write_version=tf.compat.v1.train.SaverDef.V1)
        path = saver.save(session, str(tmp_path / "lenet.ckpt"), write_meta_graph=False)
    fresh = keras.models.clone_model(model)

    weights.start(fresh, path, ignore_missing=True)

    head = {each.path: each.numpy() for each in fresh.weights if each.path.startswith("fc4")}
    assert len(head) == 2
    assert all(np.all(value == 1) for value in head.values())


def test_pictures_are_classified_and_models_exported(model, slim, run, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    picture.write_bytes(tf.io.encode_png(np.full([28, 28, 1], 200, "uint8")).numpy())
    for path, name in (slim, ""), (run, "digit "), (run / "checkpoints/step-00000001", "digit "):
        flags = [f"--checkpoint_path={path}", NET]
        assert predict.main([*flags, "--top_k=10", str(picture)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line.partition("  0.")[2][6:] for line in lines[1:]) == [
            f"{name}{number}" for number in range(10)
        ]

    flags = [f"--checkpoint_path={run}", NET, f"--export_dir={tmp_path / 'exported'}"]
    assert export.main(flags) == 0
    images = np.full([1, 28, 28, 1], 0.5, "float32")
    served = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    logits = served(images=tf.constant(images))["logits"]
    np.testing.assert_allclose(logits, model(images), atol=1e-5)
    assert (tmp_path / "exported/assets.extra/labels.txt").exists()
