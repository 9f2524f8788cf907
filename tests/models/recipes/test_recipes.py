"""Each recipe, run small: on pictures of its size made here, for a step or two."""

import functools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import nets
from models.datasets import slim_records
from models.recipes import (
    cifarnet_cifar10,
    inception_v3_imagenet,
    lenet_digits,
    vgg_16_fine_tuning,
)
from tests import fork_server


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes slim's records; the recipe runs in an empty directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()

    def write(file, *, labels, size=40):
        rng = np.random.default_rng(0)
        images = [rng.integers(256, size=(size, size, 3), dtype=np.uint8) for _ in labels]
        examples = [
            slim_records.Encoded(tf.io.encode_png(image).numpy(), size, size, label)
            for image, label in zip(images, labels, strict=True)
        ]
        assert slim_records.write(folder / file, examples) == len(labels)
        return folder

    return write


def model_of(path):
    return keras.saving.load_model(path / "model.keras", compile=False)


@pytest.mark.parametrize(
    "recipe", [cifarnet_cifar10, inception_v3_imagenet, lenet_digits, vgg_16_fine_tuning]
)
def test_it_says_how_long_it_takes_and_what_comes_of_it(recipe):
    assert re.search("Expected time", recipe.__doc__)
    assert re.search("accuracy(:| are the published)", recipe.__doc__)


def test_cifarnet_on_cifar10(write, tmp_path, capsys):
    write("cifar10_train.tfrecord", labels=range(10), size=32)
    write("cifar10_test.tfrecord", labels=[3, 4], size=32)

    assert cifarnet_cifar10.main(["--max_number_of_steps=2", "--batch_size=4"]) == 0

    assert model_of(tmp_path / "runs/cifarnet_cifar10").output_shape == (None, 10)
    assert "Test accuracy: " in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.exhaustive  # A minute; the others go the same way.
def test_inception_v3_on_imagenet(write, tmp_path, capsys):
    """On the smallest pictures that its second classifier takes."""
    folder = write("train-00000-of-00001", labels=[1, 1000])
    write("validation-00000-of-00001", labels=[7, 0])
    small = ["--max_number_of_steps=1", "--batch_size=2", "--train_image_size=107"]

    assert inception_v3_imagenet.main([f"--dataset_dir={folder}", *small]) == 0

    run = tmp_path / "runs/inception_v3"
    model = model_of(run)
    assert (model.name, model.output_shape) == ("inception_v3", (None, 1001))
    assert "Validation accuracy: " in capsys.readouterr().out
    [record] = run.glob("checkpoints/step-*/checkpoint.json")
    classes = [each["class"] for each in json.loads(record.read_text())["callbacks"]]
    assert {"MovingAverage", "Summaries"} <= set(classes)


def with_backup_workers(*argv):
    """Runs the recipe of Inception v3 on 3 workers, of which each step leaves out the slowest."""
    deployment = ["--worker_replicas=3", "--num_ps_tasks=1", "--num_replicas_to_aggregate=2"]
    main = functools.partial(inception_v3_imagenet.main, [*deployment, *argv])
    chief, *_ = fork_server.run_cluster(main, num_workers=3, num_ps=1, timeout_secs=500)
    assert chief.value == 0, chief.output
    assert "each update the mean of the first 2 of 3 gradients" in chief.output
    return chief.output


@pytest.mark.processes
def test_the_settings_of_inception_v3_with_backup_workers(write, tmp_path):
    """With a small net, for long enough that the learning rate falls: after 8 * 2 / 2 / 2 steps."""
    folder = write("train-00000-of-00001", labels=range(8), size=32)
    write("validation-00000-of-00001", labels=[7, 0], size=32)
    small = ["--max_number_of_steps=5", "--batch_size=2", "--model_name=cifarnet"]

    output = with_backup_workers(f"--dataset_dir={folder}", *small)

    run = tmp_path / "runs/inception_v3"
    optimizer = keras.saving.load_model(run / "model.keras").optimizer
    assert int(optimizer.iterations) == 5
    assert float(optimizer.learning_rate) == pytest.approx(0.045 * 0.94)
    assert (optimizer.rho, optimizer.momentum, optimizer.epsilon) == (0.9, 0.9, 1.0)
    assert "2 for 8 examples" in output
    [record] = run.glob("checkpoints/step-*/checkpoint.json")
    classes = [each["class"] for each in json.loads(record.read_text())["callbacks"]]
    assert {"MovingAverage", "Summaries"} <= set(classes)


@pytest.mark.thorough
@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.timeout(600)  # Minutes of tracing.
def test_inception_v3_on_imagenet_with_backup_workers(write, tmp_path):
    folder = write("train-00000-of-00001", labels=[1, 1000, 2, 3])
    write("validation-00000-of-00001", labels=[7, 0])
    small = ["--max_number_of_steps=2", "--batch_size=2", "--train_image_size=107"]

    output = with_backup_workers(f"--dataset_dir={folder}", *small)

    model = model_of(tmp_path / "runs/inception_v3")
    assert (model.name, model.output_shape) == ("inception_v3", (None, 1001))
    assert not any(
        layer.synchronized
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    )
    assert "Validation accuracy: " in output


@pytest.mark.exhaustive
@pytest.mark.thorough
def test_vgg_16_with_a_new_head(write, tmp_path, capsys):
    """With AlexNet in its place, whose layers have the same names: a third of the size."""
    folder = write("flowers_train_00000-of-00001.tfrecord", labels=[0, 1, 2, 4])
    write("flowers_validation_00000-of-00001.tfrecord", labels=[3])
    prefix = _slim_checkpoint(tmp_path / "alexnet_v2.ckpt")
    flags = [f"--dataset_dir={folder}", f"--checkpoint_path={prefix}", "--model_name=alexnet_v2"]

    flags += ["--max_number_of_steps=1", "--batch_size=2", "--learning_rate=0"]

    assert vgg_16_fine_tuning.main(flags) == 0

    told = capsys.readouterr()
    assert "10 variables restored" in told.err
    assert "left alone (6)" in told.err
    model = model_of(tmp_path / "runs/vgg_16_flowers")
    assert model.output_shape == (None, 5)
    assert np.all(model.get_layer("conv3").kernel.numpy() == np.float32(0.01))


def _slim_checkpoint(path):
    model = nets.build("alexnet_v2", num_classes=2, weight_decay=0.0)
    kinds = {"kernel": "weights", "bias": "biases"}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable in model.weights:
            layer, kind = variable.path.split("/")
            if layer.startswith("conv"):
                value = np.full(variable.shape, 0.01, "float32")
                name = f"alexnet_v2/{layer}/{kinds[kind]}"
                tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver().save(session, str(path))
