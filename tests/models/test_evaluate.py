"""`python -m models.evaluate`: its numbers and its mistakes."""

import re

import keras
import numpy as np
import pytest

from models import datasets, evaluate, nets, preprocessing


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "model.keras"
    keras.utils.set_random_seed(0)
    nets.build("lenet", num_classes=10, weight_decay=0).save(path)
    return path


def run(data_dir, model_path, *argv):
    return evaluate.main(
        [
            f"--checkpoint_path={model_path}",
            "--dataset_name=digits",
            f"--dataset_dir={data_dir}",
            *argv,
        ]
    )


def test_the_numbers_are_those_of_predict(data_dir, model_path, capsys):
    assert run(data_dir, model_path) == 0

    examples = datasets.load("digits", split="test", data_dir=data_dir).examples
    prepare = preprocessing.find("lenet")
    images = np.stack([prepare(image, image_size=28, seed=None) for image, _ in examples])
    labels = np.array([int(label) for _, label in examples])
    ranks = np.argsort(-keras.saving.load_model(model_path).predict(images, verbose=0))
    out = capsys.readouterr().out
    assert f"Accuracy  {(ranks[:, 0] == labels).mean():.4f}" in out
    assert f"Recall_5  {(ranks[:, :5] == labels[:, None]).any(axis=1).mean():.4f}" in out


def test_the_loss_that_is_shown_is_that_of_the_examples(data_dir, model_path, tmp_path, capsys):
    decayed = nets.build("lenet", num_classes=10, weight_decay=1.0)
    decayed.set_weights(keras.saving.load_model(model_path).get_weights())
    decayed.save(tmp_path / "model.keras")

    losses = []
    for path in (model_path, tmp_path / "model.keras"):
        assert run(data_dir, path) == 0
        losses.append(re.findall(r"loss: ([\d.]+)", capsys.readouterr().out)[-1])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("num_batches", "num_examples"), [(2, 200), (4, 360), (9, 360)])
def test_the_examples_are_counted(data_dir, model_path, num_batches, num_examples, capsys):
    assert run(data_dir, model_path, f"--max_num_batches={num_batches}") == 0

    assert f"on {num_examples} examples of digits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--checkpoint_path=missing", "there is no model missing. Train one"),
        ("--checkpoint_path=", "--checkpoint_path is missing"),
        ("--dataset_split_name=tset", "Valid splits: train (1437 examples), test (360 examples)"),
        ("--model_name=lenett", "did you mean 'lenet'?"),
        ("--preprocessing_name=lent", "did you mean 'lenet'?"),
        ("--labels_offset=1", "and classes=10, but --dataset_name 'digits' has channels=1 and"),
        ("--max_num_batches=99999999999999999999", "is too large: at most 2147483647"),
        ("--moving_average_decay=nan", "must be a number, from 0 to less than 1"),
        (
            "--eval_image_size=3",
            "lenet was trained with images of 28 pixels, and cannot take others.",
        ),
        ("--timeout_secs=9", "--timeout_secs needs --continuous: without it, there is nothing"),
        ("--moving_average_decay=0.9", "--moving_average_decay needs --continuous or a"),
    ],
)
def test_a_mistake_is_one_message(data_dir, model_path, flag, message, capsys):
    assert run(data_dir, model_path, flag) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_file_that_is_no_model_is_a_mistake(data_dir, tmp_path, capsys):
    path = tmp_path / "model.keras"
    path.write_bytes(b"not a zip file")

    assert run(data_dir, path) == 2
    assert "is not a Keras model" in capsys.readouterr().err
