"""`python -m models.predict` and `python -m models.export`: a trained model at work."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import datasets, export, nets, predict, preprocessing
from models.files.train_dir import TrainDir

NAMES = tuple(f"digit {number}" for number in range(10))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model tells digits by fresh weights."""
    from models.files import labels

    folder = TrainDir(tmp_path_factory.mktemp("run"))
    keras.utils.set_random_seed(0)
    folder.save(nets.build("lenet", num_classes=10, weight_decay=0.0))
    labels.write(folder.labels, NAMES)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, data_dir):
    """PNG files of digits."""
    digits = datasets.load("digits", split="test", data_dir=str(data_dir))
    files = []
    for number, (image, _) in enumerate(digits.examples.take(3)):
        files.append(tmp_path_factory.mktemp("pictures") / f"{number}.png")
        files[-1].write_bytes(tf.io.encode_png(image).numpy())
    return files


def expected(run, pictures):
    """Returns the probabilities of the classes, as Keras computes them."""
    model = keras.saving.load_model(run.model)
    preprocess = preprocessing.find("lenet")
    images = [tf.io.decode_png(each.read_bytes()) for each in pictures]
    batch = tf.stack([preprocess(image, image_size=28, seed=None) for image in images])
    return np.asarray(keras.ops.softmax(model(batch, training=False)))


def test_the_likeliest_classes_have_names_and_probabilities(run, pictures, capsys):
    code = predict.main([f"--checkpoint_path={run.path}", "--top_k=2", *map(str, pictures)])

    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    for number, row in enumerate(expected(run, pictures)):
        name, *told = lines[3 * number : 3 * number + 3]
        best = np.argsort(-row)[:2]
        assert name == str(pictures[number])
        assert told == [f"  {row[each]:.4f}  {NAMES[each]}" for each in best]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"text", "is not an image: JPEG, PNG"),
        (os.mkfifo, "is a pipe, and would be waited for."),
    ],
)
def test_a_file_that_is_no_image_is_one_line(content, message, run, tmp_path, capsys):
    file = tmp_path / "file"
    if callable(content):
        content(file)
    elif content:
        file.write_bytes(content)

    assert predict.main([f"--checkpoint_path={run.path}", str(file)]) == 2
    assert message in capsys.readouterr().err


def test_a_model_with_one_bit_of_its_weights_changed_is_refused(run, pictures, tmp_path, capsys):
    content = bytearray(run.model.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.keras").write_bytes(content)

    assert predict.main([f"--checkpoint_path={tmp_path}", str(pictures[0])]) == 2

    told = "model.keras' is not a Keras model: 'model.weights.h5' in it is damaged.\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_model_that_is_incomplete_is_not_said_to_be_missing(run, pictures, tmp_path, capsys):
    (tmp_path / "model.keras").write_bytes(run.model.read_bytes()[:-100])

    assert predict.main([f"--checkpoint_path={tmp_path}", str(pictures[0])]) == 2

    told = "model.keras' is not a Keras model: File is not a zip file\n"
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.parametrize("flags", [[], ["--model_name=lenet"]])
def test_a_pipe_is_no_model(flags, pictures, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.keras")

    assert predict.main([f"--checkpoint_path={tmp_path}/pipe.keras", *flags, str(pictures[0])]) == 2

    assert f"{tmp_path}/pipe.keras" in capsys.readouterr().err


def test_an_image_is_needed(run, capsys):
    assert predict.main([f"--checkpoint_path={run.path}"]) == 2
    assert "No image is given" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.processes
def test_another_process_serves_what_was_exported(run, pictures, tmp_path, capsys):
    folder = tmp_path / "exported/1"
    assert export.main([f"--checkpoint_path={run.path}", f"--export_dir={folder}"]) == 0
    assert capsys.readouterr().out.endswith(f"Written: {folder}\n")
    assert (folder / "assets.extra/labels.txt").read_text().startswith("0:digit 0\n")

    program = """
import sys, numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
contents = tf.constant([open(name, "rb").read() for name in sys.argv[3:]])
encoded = model.signatures["encoded"](images=contents)
images = model.signatures["serving_default"](images=tf.zeros([2, 28, 28, 1]))
assert images["logits"].shape == (2, 10)
assert not {"kerasdist", "models"} & set(sys.modules)
np.save(sys.argv[2], encoded["probabilities"].numpy())
"""
    found = tmp_path / "found.npy"
    arguments = [str(folder), str(found), *map(str, pictures)]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    np.testing.assert_allclose(np.load(found), expected(run, pictures), atol=1e-6)

    assert export.main([f"--checkpoint_path={run.path}", f"--export_dir={folder}"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(run, capsys):
    assert export.main([f"--checkpoint_path={run.path}", "--export_dir=/proc/exported"]) == 2

    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: --export_dir '/proc/exported' cannot be written: ")
