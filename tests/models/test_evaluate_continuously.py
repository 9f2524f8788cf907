"""Evaluation beside training, and what an evaluation writes."""

import json
import shutil
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from models import evaluate, nets, train
from tests.event_files import numbers

pytestmark = pytest.mark.thorough


def train_flags(data_dir, path, steps, *argv):
    flags = [f"--train_dir={path}", f"--dataset_dir={data_dir}", "--dataset_name=digits"]
    flags += ["--model_name=lenet", "--batch_size=16", f"--max_number_of_steps={steps}"]
    return [*flags, "--optimizer=momentum", *argv]


def evaluate_flags(data_dir, path, *argv):
    flags = [f"--checkpoint_path={path}", f"--dataset_dir={data_dir}", "--dataset_name=digits"]
    return [*flags, f"--eval_dir={path}/eval", *argv]


def continuous(data_dir, path, *argv):
    flags = ("--continuous", "--model_name=lenet", "--eval_interval_secs=1", "--timeout_secs=90")
    return evaluate_flags(data_dir, path, *flags, *argv)


def lines(path):
    text = (path / "eval/evaluations.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    assert train.main(train_flags(data_dir, path, 10, "--moving_average_decay=0.9")) == 0
    return path


@pytest.fixture
def copied(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_results_event_files_and_pictures_are_written(data_dir, copied, capsys):
    # As a callback leaves it that was in a training which failed.
    with tf.summary.record_if(False):
        assert evaluate.main(evaluate_flags(data_dir, copied)) == 0

    [line] = lines(copied)
    assert line["step"] == 10
    out = capsys.readouterr().out
    assert f"Accuracy  {line['Accuracy']:.4f}" in out
    assert numbers(copied / "eval") == {
        "eval/Accuracy": {10: pytest.approx(line["Accuracy"])},
        "eval/Recall_5": {10: pytest.approx(line["Recall_5"])},
    }
    for name in "confusion.png", "mistakes.png":
        assert (copied / "eval" / name).read_bytes().startswith(b"\x89PNG")
    assert not list((copied / "eval").glob(".incomplete*"))


@pytest.mark.exhaustive
def test_a_finished_training_is_measured_once(data_dir, copied, capsys):
    for _ in range(2):
        assert evaluate.main(continuous(data_dir, copied)) == 0

        assert [line["step"] for line in lines(copied)] == [10]
        assert "is finished at step 10." in capsys.readouterr().err
    best = keras.saving.load_model(copied / "eval/best.keras", compile=False)
    assert best.name == "lenet"


@pytest.mark.exhaustive
def test_averages_are_measured_where_they_are_asked_for(data_dir, copied):
    assert evaluate.main(continuous(data_dir, copied)) == 0
    shutil.move(copied / "eval", copied / "raw")
    assert evaluate.main(continuous(data_dir, copied, "--moving_average_decay=0.9")) == 0

    raw, average, trained = (
        keras.saving.load_model(copied / name, compile=False).get_weights()[0]
        for name in ("raw/best.keras", "eval/best.keras", "model.keras")
    )
    assert (average == trained).all()
    assert (raw != trained).any()


def test_it_ends_when_nothing_comes(data_dir, tmp_path, capsys):
    flags = continuous(data_dir, tmp_path / "nothing", "--timeout_secs=1")

    assert evaluate.main(flags) == 0

    assert "No new checkpoint in " in capsys.readouterr().err


def test_it_ends_at_a_step(data_dir, copied, capsys):
    (copied / "model.keras").unlink()

    assert evaluate.main(continuous(data_dir, copied, "--max_number_of_steps=10")) == 0

    assert "Done: step 10 is evaluated." in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_best_model_is_that_of_the_best_step(data_dir, copied, monkeypatch):
    from models.evaluation import Evaluation

    accuracies = iter([0.9, 0.8])
    steps = iter([0.1, 0.2])

    def measure(self, model):
        model.set_weights([each * 0 + next_step for each in model.get_weights()])
        return {"Accuracy": next(accuracies), "Recall_5": 1.0}

    monkeypatch.setattr(Evaluation, "measure", measure)
    for step in 10, 20:
        next_step = next(steps)
        if step == 20:
            checkpoints = copied / "checkpoints"
            shutil.copytree(checkpoints / "step-00000010", checkpoints / "step-00000020")
        flags = continuous(data_dir, copied, f"--max_number_of_steps={step}")
        assert evaluate.main(flags) == 0

    assert [line["step"] for line in lines(copied)] == [10, 20]
    best = keras.saving.load_model(copied / "eval/best.keras", compile=False)
    assert best.get_weights()[0].max() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model_name="], "--model_name is missing: --continuous needs"),
        (["--checkpoint_path="], "--checkpoint_path is missing: --continuous needs"),
        (["--model_name=cifarnet", "--eval_image_size=28"], "Shapes in "),
        (["--eval_dir=/dev/null/eval"], "--eval_dir '/dev/null/eval' cannot be written to"),
    ],
)
def test_mistakes(data_dir, copied, flags, message, capsys):
    assert evaluate.main(continuous(data_dir, copied, *flags)) == 2

    assert message in capsys.readouterr().err


def test_another_net_than_the_model_is_refused(data_dir, run, capsys):
    assert evaluate.main(evaluate_flags(data_dir, run, "--model_name=cifarnet")) == 2

    assert "--model_name 'cifarnet': the model is a lenet" in capsys.readouterr().err


def test_other_sizes_of_images_where_the_net_takes_them(data_dir, run, capsys):
    assert evaluate.main(evaluate_flags(data_dir, run, "--eval_image_size=32")) == 2

    assert "lenet was trained with images of 28 pixels, and cannot take" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_net_of_convolutions_alone_takes_them(data_dir, tmp_path, capsys):
    model = nets.build(
        "mobilenet_v1_025", num_classes=10, weight_decay=0.0, image_size=32, channels=1
    )
    model.save(tmp_path / "model.keras")
    flags = evaluate_flags(data_dir, tmp_path, "--eval_image_size=64", "--max_num_batches=1")

    assert evaluate.main(flags) == 0

    assert "on 100 examples of digits" in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.processes
def test_each_checkpoint_of_a_running_training_is_measured(data_dir, tmp_path):
    path = tmp_path / "run"
    flags = train_flags(data_dir, path, 200, "--save_interval_secs=2")
    with subprocess.Popen([sys.executable, "-m", "models.train", *flags]) as process:
        try:
            assert evaluate.main(continuous(data_dir, path)) == 0
            assert process.wait(60) == 0
        finally:
            process.kill()

    measured = [line["step"] for line in lines(path)]
    assert measured == sorted(set(measured))
    assert measured[-1] == 200
    assert len(measured) > 1  # Also before the end.
