"""`models.train` and `models.evaluate` as two processes of a cluster."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from models import evaluate, nets, train
from tests import fork_server

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
RESULTS = [
    *("checkpoints", "labels.txt", "learning_curve.png", "model.keras", "samples.png", "train"),
    "validation",
]
STEPS_OF_AN_EPOCH = 5  # 150 examples in batches of 32.


def arguments(tmp_path, name):
    (tmp_path / "data").mkdir(exist_ok=True)
    return [
        f"--train_dir={tmp_path / name}",
        f"--dataset_dir={tmp_path / 'data'}",
        "--dataset_name=digits",
        "--dataset_split_name=train[:150]",
        "--model_name=lenet",
        "--batch_size=16",
        f"--max_number_of_steps={STEPS_OF_AN_EPOCH + 2}",
        "--optimizer=adam",
        "--opt_epsilon=1e-8",
        "--learning_rate=0.001",
        "--learning_rate_decay_type=fixed",
    ]


def weights(path):
    model = keras.saving.load_model(path / "model.keras")
    assert int(model.optimizer.iterations) == STEPS_OF_AN_EPOCH + 2
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def accuracy(output):
    (value,) = re.findall(r"Test accuracy: (0\.\d+) \(360 examples\)", output)
    return value


def test_two_workers_given_by_hand_make_the_model_of_two_clones(tmp_path, capsys):
    argv = arguments(tmp_path, "workers")

    def by_hand():
        config = json.loads(os.environ.pop("TF_CONFIG"))
        hosts = ",".join(config["cluster"]["worker"])
        index = config["task"]["index"]
        flags = ["--worker_replicas=2", f"--worker_hosts={hosts}", f"--task_id={index}"]
        return train.main([*argv, *flags])

    chief, other = fork_server.run_cluster(by_hand, num_workers=2)
    clones = [*arguments(tmp_path, "clones"), "--num_clones=2", "--clone_on_cpu"]
    assert train.main(clones) == 0

    assert (chief.value, other.value) == (0, 0), chief.output + other.output
    assert "CPU:0 on each of 2 workers" in chief.output
    assert "prepares its part of each batch" in chief.output
    assert chief.output.count("Writing the dataset 'digits'") == 1
    assert "Plan" not in other.output
    assert "Writ" not in other.output
    assert accuracy(chief.output) == accuracy(capsys.readouterr().out)
    np.testing.assert_allclose(
        weights(tmp_path / "workers"), weights(tmp_path / "clones"), atol=1e-5
    )
    files = sorted(path.name for path in (tmp_path / "workers").iterdir())
    assert files == RESULTS
    assert len(list((tmp_path / "workers/train").iterdir())) == 1


@pytest.mark.exhaustive
def test_workers_and_parameter_servers_make_exactly_the_steps_asked_for(tmp_path):
    # The batch is that of one worker's step, so it is that of both workers above.
    deployment = ["--worker_replicas=2", "--num_ps_tasks=1", "--batch_size=32"]
    argv = [*arguments(tmp_path, "ps"), *deployment]

    with launch(tmp_path, "-m", "models.train", *argv, options=["--ps=1"]) as process:
        output = process.stdout.read()
    assert process.returncode == 0, output

    weights(tmp_path / "ps")  # Checks the number of steps.
    assert f"{STEPS_OF_AN_EPOCH} for 160 examples" in output  # The last batch is full.
    assert output.count("Plan") == output.count("Writing the dataset 'digits'") == 1
    for task in "worker 0", "worker 1", "ps 0":
        assert re.search(rf"^{task} +\| the job is over\.$", output, re.MULTILINE)
    files = sorted(path.name for path in (tmp_path / "ps").iterdir())
    assert files == RESULTS


def test_the_line_of_slim_trains_without_waiting_for_the_slowest_worker(tmp_path):
    deployment = [
        *("--worker_replicas=3", "--num_ps_tasks=1"),
        *("--sync_replicas", "--replicas_to_aggregate=2"),
    ]
    argv = [*arguments(tmp_path, "backup"), *deployment]

    # Two batches of 16 make an update: those of both workers above.
    with launch(
        tmp_path, "-m", "models.train", *argv, options=["--workers=3", "--ps=1"]
    ) as process:
        output = process.stdout.read()
    assert process.returncode == 0, output

    weights(tmp_path / "backup")  # Checks the number of steps.
    assert "synchronous workers, each update the mean of the first 2 of 3 gradients" in output
    assert f"{STEPS_OF_AN_EPOCH} for 160 examples" in output  # The last batch is full.
    assert 0.0 < float(accuracy(output)) <= 1.0


def test_workers_and_parameter_servers_given_by_hand_evaluate_each_example_once(tmp_path, capsys):
    argv = evaluation(tmp_path)

    def by_hand():
        config = json.loads(os.environ.pop("TF_CONFIG"))
        flags = [
            *(f"--{job}_hosts={','.join(config['cluster'][job])}" for job in ("worker", "ps")),
            f"--chief_host={config['cluster']['chief'][0]}",
            f"--job_name={config['task']['type']}",
            f"--task_id={config['task']['index']}",
        ]
        return evaluate.main([*argv, *flags])

    chief, worker, ps = fork_server.run_cluster(by_hand, num_workers=1, num_ps=1)
    capsys.readouterr()
    assert evaluate.main(argv) == 0

    assert [task.exit_code for task in (chief, worker, ps)] == [0, 0, 0], chief.output
    assert results(chief.output) == results(capsys.readouterr().out) != []
    assert "Accuracy" not in worker.output + ps.output


def launch(tmp_path, *command, options=()):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kerasdist",
            "launch",
            "--workers=2",
            *options,
            "--",
            sys.executable,
            *command,
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.exhaustive
def test_ctrl_c_ends_a_launched_training_without_a_traceback(tmp_path):
    argv = [*arguments(tmp_path, "run"), "--max_number_of_steps=1000000"]

    with launch(tmp_path, "-m", "models.train", *argv) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Epoch 2/" in line:
                process.send_signal(signal.SIGINT)
    output = "".join(lines)

    assert process.returncode == 130, output
    assert "Stopping all tasks." in output
    assert "Traceback" not in output
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert files == ["checkpoints", "labels.txt", "samples.png", "train", "validation"]


@pytest.mark.exhaustive
def test_workers_evaluate_each_example_once(tmp_path, capsys):
    argv = evaluation(tmp_path)

    chief, other = fork_server.run_cluster(functools.partial(evaluate.main, argv), num_workers=2)
    capsys.readouterr()
    assert evaluate.main(argv) == 0

    assert (chief.value, other.value) == (0, 0), chief.output + other.output
    assert "on 360 examples of digits" in chief.output
    assert "Accuracy" not in other.output
    assert results(chief.output) == results(capsys.readouterr().out) != []


def evaluation(tmp_path):
    (tmp_path / "data").mkdir()
    keras.utils.set_random_seed(0)
    nets.build("lenet", num_classes=10, weight_decay=0).save(tmp_path / "model.keras")
    return [
        f"--checkpoint_path={tmp_path / 'model.keras'}",
        f"--dataset_dir={tmp_path / 'data'}",
        "--dataset_name=digits",
    ]


def results(output):
    return re.findall(r"^  \w+  0\.\d+$", output, flags=re.MULTILINE)


@pytest.mark.exhaustive
def test_a_mistake_of_a_launched_training_is_one_line_and_code_2(tmp_path):
    argv = [*arguments(tmp_path, "run"), "--worker_replicas=3"]

    with launch(tmp_path, "-m", "models.train", *argv) as process:
        output = process.stdout.read()

    assert process.returncode == 2, output
    assert "--worker_replicas=3, --num_ps_tasks=0, but the cluster has 2 workers" in output
    assert "Make them agree, leave these flags out, or unset TF_CONFIG" in output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()
