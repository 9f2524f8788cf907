"""`python -m models.train`: its mistakes, its files and its end."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from models import datasets, evaluate, nets, train
from models.files.train_dir import TrainDir
from models.nets import auxiliary
from models.training import ctrl_c, saving
from tests.cases import exhaustive
from tests.event_files import images, numbers, scalars, texts
from tests.full_disk import files_of_at_most

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


@pytest.fixture
def argv(tmp_path, data_dir):
    return [
        f"--train_dir={tmp_path / 'run'}",
        f"--dataset_dir={data_dir}",
        "--dataset_name=digits",
        "--dataset_split_name=train[:40]",
        "--model_name=lenet",
        "--batch_size=16",
        "--max_number_of_steps=4",
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--model_name=lenett", "did you mean 'lenet'?"),
        ("--preprocessing_name=lent", "did you mean 'lenet'?"),
        ("--optimizer=adm", "did you mean 'adam'?"),
        ("--learning_rate_decay_type=cosine", "Valid names: exponential, fixed, polynomial"),
        ("--dataset_split_name=tran", "Valid splits: train (1437 examples), test (360 examples)"),
        ("--dataset_name=", "--dataset_name is missing"),
        ("--dataset_dir=missing", "--dataset_dir 'missing' is not a directory. Create it"),
        ("--train_dir=/dev/null/run", "--train_dir '/dev/null/run' cannot be created"),
        ("--train_dir=", "--train_dir is missing"),
        ("--train_dir=gs://bucket/run", "--train_dir 'gs://bucket/run' must be a folder"),
        ("--batch_size=0", "--batch_size=0: 0 is not a positive integer"),
        ("--seed=4294967296", "--seed=4294967296: 4294967296 is too large: at most 4294967295"),
        ("--max_number_of_steps=99999999999999999999", "is too large: at most 2147483647"),
        ("--batchsize=1", "Did you mean: batch_size ?"),
        ("--num_clones=0", "num_clones=0"),
        ("--num_clones=two", "flag --num_clones=two: must be a whole number"),
        ("--num_clones=99", "99"),
        ("--worker_replicas=2", "`python -m kerasdist launch --workers 2 --` before the command"),
        ("--num_ps_tasks=1", "`python -m kerasdist launch --workers 1 --ps 1 --` before"),
        ("--task_id=1", "--task_id=1 needs --worker_hosts"),
        ("--labels_offset=10", "Received: 10"),
        ("--learning_rate=nan", "flag --learning_rate=nan: must be a number, 0 or more"),
        ("--learning_rate=two", "flag --learning_rate=two: must be a number, 0 or more"),
        ("--end_learning_rate=-1", "must be a number, 0 or more"),
        ("--learning_rate_decay_factor=0", "must be a number, more than 0"),
        ("--num_epochs_per_decay=0", "must be a number, more than 0"),
        ("--weight_decay=nan", "must be a number, 0 or more"),
        ("--label_smoothing=nan", "must be a number, from 0 to 1"),
        ("--dataset_split_name=train[:abc]", "'train[:abc]'"),
        ("--dataset_split_name=train[40:40]", "'train[40:40]' of 'digits' has no examples"),
        ("--train_image_size=2", "of 2 x 2 pixels: its layers shrink them to nothing. Give a la"),
        ("--checkpoint_exclude_scopes=fc4", "--checkpoint_exclude_scopes needs --checkpoint_path"),
        ("--replicas_to_aggregate=2", "Several gradients of a worker in an update need parameter"),
        ("--master=grpc://a:1", "=grpc://a:1: there is no --master here: TF_CONFIG, a launcher,"),
        ("--num_replicas_to_aggregate=0", "--num_replicas_to_aggregate must be at least 1, or"),
        ("--task=3", "--task must be less than --worker_replicas; it counts"),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(argv, flag, message, tmp_path, capsys):
    assert train.main([*argv, flag]) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_mistake_ends_the_process_with_code_2_and_neither_traceback_nor_advice(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    run = subprocess.run(
        [sys.executable, "-m", "models.train", "--model_name=lenett"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 2
    assert run.stderr.count("error: Unknown --model_name 'lenett'") == 1
    assert "Traceback" not in run.stderr
    assert "rebuild TensorFlow" not in run.stderr  # TensorFlow informs of the processor.
    assert list(tmp_path.iterdir()) == []


def test_a_trained_model_can_be_evaluated_and_is_replaced_only_when_asked(argv, tmp_path, capsys):
    run = tmp_path / "run"
    assert train.main(argv) == 0
    assert "Test accuracy: " in capsys.readouterr().out
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "labels.txt",
        "learning_curve.png",
        "model.keras",
        "samples.png",
        "train",
        "validation",
    ]
    assert int(keras.saving.load_model(run / "model.keras").optimizer.iterations) == 4

    assert evaluate.main([argv[1], argv[2], f"--checkpoint_path={run}"]) == 0
    assert "on 360 examples of digits, split test" in capsys.readouterr().out

    assert train.main(argv) == 0
    assert "is finished: 4 steps" in capsys.readouterr().err

    assert train.main([*argv, "--overwrite"]) == 0
    assert "Starting over" in capsys.readouterr().out
    assert len(list((run / "train").iterdir())) == 1


@pytest.mark.exhaustive
def test_event_files_have_the_values_of_epochs_and_of_some_steps(argv, tmp_path):
    assert train.main([*argv, "--log_every_n_steps=3"]) == 0

    training, validation = (
        {name: [step for tag, step in found if tag == name] for name, _ in found}
        for found in (scalars(tmp_path / "run" / part) for part in ("train", "validation"))
    )
    assert training["batch_loss"] == training["batch_accuracy"] == [3]
    assert training["epoch_loss"] == training["epoch_learning_rate"] == [0, 1]
    assert validation["epoch_accuracy"] == [0, 1]


def test_the_lines_of_slims_trainer(argv, caplog):
    assert train.main([*argv, "--log_every_n_steps=1", "--max_number_of_steps=8"]) == 0

    steps = re.findall(r"global step (\d+): loss = \d+\.\d{4} \(", caplog.text)
    assert steps == [str(number) for number in range(1, 9)]
    assert re.search(r"\(\d+\.\d ms/step, \d+(\.\d)? examples/s\)", caplog.text)
    assert "step 1: loss" in caplog.text.partition("(a step that is prepared or")[0]


def test_lines_can_be_turned_off_and_show_few_examples_with_a_decimal(tmp_path):
    train.define_flags(values := flags.FlagValues())
    values(["", "--log_every_n_steps=0"])
    found = saving.build(values, TrainDir(tmp_path))
    lines = saving.SlimLines(1)
    rates = [SimpleNamespace(examples_per_second=each, ms_per_step=2) for each in (5.76, 57.6)]

    assert not any(isinstance(each, saving.SlimLines) for each in found)
    assert [lines.line(3, rate, 0.5) for rate in rates] == [
        "global step 3: loss = 0.5000 (2.0 ms/step, 5.8 examples/s)",
        "global step 3: loss = 0.5000 (2.0 ms/step, 58 examples/s)",
    ]


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_model(argv, tmp_path):
    weights = []
    for seed in 0, 0, 1:
        assert train.main([*argv, "--overwrite", f"--seed={seed}"]) == 0
        weights.append(keras.saving.load_model(tmp_path / "run/model.keras").get_weights()[0])

    assert abs(weights[0] - weights[1]).max() < 1e-5
    assert abs(weights[0] - weights[2]).max() > 1e-2


def test_a_training_that_diverges_ends_with_code_1_and_without_a_model(argv, tmp_path, capsys):
    diverging = ["--optimizer=sgd", "--learning_rate=1e8", "--num_clones=2", "--clone_on_cpu"]

    assert train.main([*argv, *diverging, "--max_number_of_steps=20"]) == 1

    printed = capsys.readouterr()
    says = r"error: Step \d+ is not finite on replicas .*: .* no model is saved\. Lower --learning_"
    assert re.match(says, printed.err)
    assert printed.err.count("\n") == 1
    assert "Test accuracy" not in printed.out
    assert not (tmp_path / "run/model.keras").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [train, evaluate])
def test_a_label_that_is_no_class_is_named_with_the_way_out(command, argv, tmp_path, capsys):
    if command is evaluate:
        keras.utils.set_random_seed(0)
        path = tmp_path / "model.keras"
        nets.build("lenet", num_classes=9, weight_decay=0).save(path)
        argv = [*argv[1:3], "--dataset_split_name=train[:40]", f"--checkpoint_path={path}"]

    assert command.main([*argv, "--labels_offset=1"]) == 1

    printed = capsys.readouterr()
    assert re.fullmatch(r"error: Label 0 of example \d+ .* --ignore_other_.*\n", printed.err)
    assert not (tmp_path / "run/model.keras").exists()

    assert command.main([*argv, "--labels_offset=1", "--ignore_other_labels"]) == 0


class InterruptingHistory(keras.callbacks.History):
    """Ctrl-C after the second step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


def test_ctrl_c_keeps_the_model_trained_so_far(argv, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(keras.callbacks, "History", InterruptingHistory)

    assert train.main(argv) == 130

    model = keras.saving.load_model(tmp_path / "run/model.keras")
    assert int(model.optimizer.iterations) == 2
    printed = capsys.readouterr().out
    assert "Interrupted: the model as of step 2 is saved" in printed
    assert next_command(printed).endswith(f"--dataset_dir={argv[1].partition('=')[2]}")
    assert "resumes from" not in printed  # There is no checkpoint yet.


class PressingHistory(keras.callbacks.History):
    """Ctrl-C, as the terminal sends it, in the second step."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_of_the_terminal_leaves_a_checkpoint_of_the_running_step(
    argv, tmp_path, capsys, monkeypatch
):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(keras.callbacks, "History", PressingHistory)
        assert train.main(argv) == 130
    printed = capsys.readouterr().out
    assert "Ctrl-C: training stops after the running step, with a checkpoint." in printed
    assert "Interrupted: the model as of step 2 is saved" in printed
    assert "The same command resumes from step 2." in printed

    assert train.main(argv) == 0
    assert "step 2, epoch 1 of" in capsys.readouterr().err
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_ctrl_c_after_the_checkpoint_has_stopped_to_wait_does_not_end_the_process():
    def ignore(*_):
        """Stands for the Checkpoint."""

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    watch = ctrl_c.CtrlC(is_on=True)
    try:
        signal.signal(signal.SIGTERM, ignore)
        watch.on_train_begin()
        signal.signal(signal.SIGTERM, before[1])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before[1])
        watch.unwatch()

    assert not watch.was_pressed
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def next_command(printed):
    """Returns the arguments of the evaluation that is proposed."""
    (line,) = re.findall(r"Next:\n .* -m models.evaluate (.*)\n", printed)
    return line


@pytest.mark.exhaustive
def test_ctrl_c_after_a_checkpoint_says_where_the_command_goes_on(
    argv, tmp_path, capsys, monkeypatch
):
    assert train.main(argv) == 0
    monkeypatch.setattr(keras.callbacks, "History", InterruptingHistory)

    assert train.main([*argv, "--max_number_of_steps=9"]) == 130
    assert "The same command resumes from step 4." in capsys.readouterr().out

    monkeypatch.undo()
    assert train.main([*argv, "--max_number_of_steps=5"]) == 0
    printed = capsys.readouterr()
    assert "step 4, epoch 2 of 2, after 1 of its steps" in printed.err
    model = keras.saving.load_model(tmp_path / "run/model.keras")
    assert int(model.optimizer.iterations) == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("split", ["validation", None])
def test_the_command_that_is_proposed_measures_a_split_that_there_is(split, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, [8, 28, 28, 1], "uint8")
    for name in filter(None, ("train", split)):
        for number, picture in enumerate(pixels):
            path = tmp_path / "data" / name / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(path, picture)
    flags = ["--dataset_name=folder", f"--dataset_dir={tmp_path / 'data'}", "--use_grayscale"]
    flags += ["--model_name=lenet", f"--train_dir={tmp_path / 'run'}", "--batch_size=4"]

    assert train.main([*flags, "--max_number_of_steps=1"]) == 0

    printed = capsys.readouterr().out
    assert ("Validation accuracy: " in printed) == (split is not None)
    assert evaluate.main(next_command(printed).split()) == 0
    assert f"split {split or 'train'}:" in capsys.readouterr().out


def test_a_split_that_is_trained_on_is_not_tested_on(argv, capsys):
    assert train.main([*argv, "--dataset_split_name=train[:20]+test[:20]"]) == 0

    printed = capsys.readouterr().out
    assert "val_loss" not in printed
    assert "Test accuracy" not in printed
    assert "--dataset_split_name=train[:20]+test[:20]" in next_command(printed)


def kill_at(step, argv, *, checkpoints):
    """Runs the trainer in a process that kills itself after a step, and after a checkpoint."""
    program = f"""
import os, pathlib, signal, sys, time
from kerasdist import callbacks
from models import train
from models.training import saving

class Kill(callbacks.UpdateCallback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == {step}:
            while not list(pathlib.Path({str(checkpoints)!r}).glob("step-*")):
                time.sleep(0.1)  # It is written beside the training.
            os.kill(os.getpid(), signal.SIGKILL)

build = saving.build
saving.build = lambda *args: [*build(*args), Kill()]
sys.exit(train.main(sys.argv[1:]))
"""
    result = subprocess.run([sys.executable, "-c", program, *argv], cwd=ROOT, timeout=200)
    assert result.returncode == -9


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [4, 2])  # Of epochs of 3 steps.
def test_more_steps_go_on_in_the_middle_of_an_epoch(first, argv, tmp_path):
    weights = []
    for run, stops in (("whole", [8]), ("in two", [first, 8])):
        for steps in stops:
            changed = [f"--train_dir={tmp_path / run}", f"--max_number_of_steps={steps}"]
            assert train.main([*argv, *changed]) == 0
        model = keras.saving.load_model(tmp_path / run / "model.keras")
        assert int(model.optimizer.iterations) == 8
        weights.append(model.get_weights())

    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.exhaustive
@pytest.mark.processes
def test_a_run_that_was_killed_goes_on_with_the_same_command(argv, tmp_path, capsys):
    steps = ["--max_number_of_steps=14", "--save_interval_secs=1"]
    run = tmp_path / "run"
    kill_at(12, [*argv, *steps], checkpoints=run / "checkpoints")
    assert not (run / "model.keras").exists()
    num_events = len(list((run / "train").iterdir()))

    assert train.main([*argv, *steps]) == 0

    assert (run / "model.keras").exists()
    told = capsys.readouterr()
    assert "Starting over" not in told.out
    assert "Resumed from" in told.err
    assert len(list((run / "train").iterdir())) == num_events + 1


@pytest.mark.exhaustive
def test_a_run_goes_on_with_its_own_net_and_optimizer_alone(argv, tmp_path, capsys):
    assert train.main(argv) == 0
    files = [tmp_path / "run" / name for name in ("labels.txt", "samples.png", "model.keras")]
    contents = [file.read_bytes() for file in files]
    for other in (
        ["--optimizer=adam", "--seed=1"],
        ["--model_name=cifarnet", "--train_image_size=28"],
        ["--num_clones=2", "--clone_on_cpu"],
    ):
        capsys.readouterr()

        assert train.main([*argv, *other, "--max_number_of_steps=8"]) == 2

        told = capsys.readouterr().err
        assert f"error: --train_dir {str(tmp_path / 'run')!r} holds another training." in told
        assert "in the checkpoint, " in told
        assert "weights_if_changed" not in told
        assert ("--batch_size is per clone" in told) == ("--clone_on_cpu" in other)
        assert [file.read_bytes() for file in files] == contents
    assert train.main([*argv, "--optimizer=adam", "--overwrite"]) == 0


def test_a_model_that_its_directory_does_not_take_is_saved_elsewhere(
    argv, tmp_path, monkeypatch, capsys
):
    save = keras.Model.save

    def refuse(model, path, *args, **kwargs):
        if tmp_path / "run" in path.parents:
            path.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(model, path, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "save", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert train.main(argv) == 1

    told = capsys.readouterr()
    assert "model.keras: [Errno 28] No space left on device." in told.err
    path = re.search(r"as of step 4 is saved in (\S+) instead", told.out)
    assert path
    keras.saving.load_model(path[1])
    assert not list((tmp_path / "run").glob("*model.keras"))


@pytest.mark.exhaustive
def test_a_disk_that_is_full_everywhere_is_told(argv, tmp_path, capsys):
    with files_of_at_most(100_000), pytest.warns(UserWarning, match="checkpoint of step 4 cannot"):
        assert train.main(argv) == 2

    told = capsys.readouterr().err
    assert "File too large" in told
    assert "Free some space and run the same command again" in told


@pytest.mark.exhaustive
def test_fine_tuning_begins_with_the_weights_of_a_run(argv, tmp_path, capsys):
    assert train.main([*argv, "--optimizer=sgd"]) == 0
    first = keras.saving.load_model(tmp_path / "run/model.keras")

    tuned = [each for each in argv if "train_dir" not in each]
    tuned += [f"--train_dir={tmp_path / 'tuned'}", f"--checkpoint_path={tmp_path / 'run'}"]
    tuned += ["--checkpoint_exclude_scopes=fc4", "--trainable_scopes=fc4"]
    assert train.main([*tuned, "--optimizer=sgd"]) == 0

    second = keras.saving.load_model(tmp_path / "tuned/model.keras")
    for ours, theirs in zip(second.weights, first.weights, strict=True):
        is_head = "fc4" in ours.path
        assert (abs(ours.numpy() - theirs.numpy()).max() > 0) == is_head, ours.path
    told = capsys.readouterr()
    assert "left alone (2)" in told.err
    assert re.search("trained +2 of 8 variables, those of --trainable_scopes", told.out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--checkpoint_path=nowhere"], "--checkpoint_path 'nowhere': There are no weights at"),
        (["--trainable_scopes=logitz"], "--trainable_scopes names 'logitz', but the net"),
        (["--moving_average_decay=1"], "--moving_average_decay=1"),
        (["--trace_every_n_steps=0"], "--trace_every_n_steps=0"),
        (["--trace_every_n_steps=3", "--trace_at_steps=5"], "exclude each other"),
        *(
            ([f"--trace_at_steps={steps}"], "must be rising whole numbers from 1 on, comma-sep")
            for steps in ("0,3", "5,3", "3,x", "")
        ),
        (["--loss_averages_decay=1"], "--loss_averages_decay=1"),
        (["--save_interval_secs=0"], "--save_interval_secs=0"),
        (["--keep_checkpoints=0"], "--keep_checkpoints=0: 0 is not a positive integer"),
    ],
)
def test_wrong_flags_of_what_is_kept(flags, message, argv, tmp_path, capsys):
    assert train.main([*argv, *flags]) == 2

    assert message in capsys.readouterr().err


def test_averages_summaries_pictures_and_traces(argv, data_dir, tmp_path):
    flags = ["--moving_average_decay=0.9", "--save_summaries_secs=1", "--trace_at_steps=3,7"]
    flags += ["--loss_averages_decay=0.5", "--log_every_n_steps=1"]
    assert train.main([*argv, *flags, "--max_number_of_steps=8"]) == 0

    run = tmp_path / "run"
    assert {path.name for path in run.glob("tf_trace*")} == {"tf_trace-3.json", "tf_trace-7.json"}
    assert "plan" in texts(run / "train")
    assert (run / "model.keras").exists()
    found = numbers(run / "train")
    raw, average = (found[f"batch_loss{end}"] for end in (" (raw)", ""))
    assert average[2] == pytest.approx((raw[1] + 2 * raw[2]) / 3, rel=1e-4)
    assert_are_different_digits(images(run / "train")["first_batch"], data_dir)


def assert_are_different_digits(pictures, data_dir):
    """Checks that each picture is another one of the images that are trained on."""
    digits = datasets.load("digits", split="train[:40]", data_dir=str(data_dir))
    stored = np.stack([image.numpy().astype(float) for image, _ in digits.examples])
    low, high = (limit(stored, axis=(1, 2, 3), keepdims=True) for limit in (np.min, np.max))
    stored = (stored - low) / (high - low) * 255
    shown = [tf.io.decode_png(each).numpy() for each in pictures]
    differences = [np.abs(stored - each).max(axis=(1, 2, 3)) for each in shown]

    assert max(each.min() for each in differences) <= 1
    assert len({each.argmin() for each in differences}) == len(shown) == 16


def test_flags_of_what_is_kept_and_traced(tmp_path):
    def built(*argv) -> dict[str, Any]:
        train.define_flags(values := flags.FlagValues())
        values(["", *argv])
        return {type(each).__name__: each for each in saving.build(values, TrainDir(tmp_path))}

    assert set(built()) == {"Checkpoint"}
    assert built()["Checkpoint"].keep == 2
    assert built("--keep_checkpoints=5")["Checkpoint"].keep == 5
    assert built("--trace_every_n_steps=3")["ProfilerTrace"].every_steps == 3
    assert list(built("--trace_at_steps=60, 120")["ProfilerTrace"].at_steps) == [60, 120]


@pytest.mark.exhaustive
def test_fine_tuning_from_a_checkpoint_of_slim(argv, tmp_path, capsys):
    """The command of slim's own examples, with slim's names of layers."""
    model = nets.build("lenet", num_classes=7, weight_decay=0.0)
    kinds = {"kernel": "weights", "bias": "biases"}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable in model.weights:
            layer, kind = variable.path.split("/")
            value = np.full(variable.shape, 0.25, "float32")
            tf.compat.v1.get_variable(f"LeNet/{layer}/{kinds[kind]}", initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(tmp_path / "slim/model.ckpt"))

    flags = [f"--checkpoint_path={prefix}", "--checkpoint_exclude_scopes=LeNet/fc4"]
    assert train.main([*argv, *flags, "--trainable_scopes=LeNet/fc4", "--optimizer=sgd"]) == 0

    trained = keras.saving.load_model(tmp_path / "run/model.keras")
    for variable in trained.weights:
        assert np.all(variable.numpy() == 0.25) == (not variable.path.startswith("fc4"))
    assert "left alone (2)" in capsys.readouterr().err


@pytest.mark.exhaustive  # What is learnt, where others ask what is loaded.
def test_features_of_other_digits_are_better_than_drawn_ones(data_dir, tmp_path, capsys):
    """LeNet on the digits 5 to 9, and then a new last layer alone on all ten."""
    common = ["--dataset_name=digits", f"--dataset_dir={data_dir}", "--model_name=lenet"]
    common += ["--optimizer=sgd", "--learning_rate=0.05"]

    def accuracy(name, *flags):
        assert train.main([*common, f"--train_dir={tmp_path / name}", *flags]) == 0
        return float(capsys.readouterr().out.split("Test accuracy:")[1].split()[0])

    accuracy("half", "--labels_offset=5", "--ignore_other_labels", "--max_number_of_steps=60")
    last_layer = ["--trainable_scopes=fc4", "--max_number_of_steps=20"]
    tuned = ["--checkpoint_exclude_scopes=fc4", f"--checkpoint_path={tmp_path / 'half'}"]

    # With the seeds 0, 1 and 2 about 0.7 and 0.1.
    assert accuracy("tuned", *last_layer, *tuned) > accuracy("fresh", *last_layer) + 0.3


@pytest.mark.exhaustive
def test_a_net_with_a_second_classifier_keeps_the_first(argv, tmp_path, monkeypatch, capsys):
    def build(*, num_classes, image_size, channels, weight_decay):
        images = keras.Input((image_size, image_size, channels))
        x = keras.layers.Flatten()(images)
        both = [keras.layers.Dense(num_classes)(x) for _ in range(2)]
        return auxiliary.with_auxiliary(images, *both)

    monkeypatch.setitem(nets.NETS, "lenet", nets.Net(build, 28, "lenet", channels=1))

    assert train.main([*argv, "--num_clones=2", "--clone_on_cpu"]) == 0

    model = keras.saving.load_model(tmp_path / "run/model.keras")
    assert model.name == "lenet"
    assert model.output_shape == (None, 10)
    assert len(model.weights) == 2
    assert "Test accuracy:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag",
    [
        "--checkpoint_path=nowhere",
        "--trainable_scopes=logitz",
        *exhaustive("--gradient_multipliers=conv1:3", "--gradient_multipliers=conv9=3"),
    ],
)
def test_a_mistake_about_layers_or_weights_leaves_the_earlier_run_whole(
    flag, argv, tmp_path, capsys
):
    run = tmp_path / "run"
    checkpoint, events = run / "checkpoints/step-00000004", run / "train/events.out.tfevents.1"
    for path in checkpoint, events.parent:
        path.mkdir(parents=True)
    events.write_text("old")

    assert train.main([*argv, flag, "--overwrite"]) == 2
    assert checkpoint.exists()
    assert events.exists()
    assert "Starting over" not in capsys.readouterr().out

    assert train.main([*argv, flag, f"--train_dir={tmp_path / 'new'}"]) == 2
    assert list(tmp_path.iterdir()) == [run]
