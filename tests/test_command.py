"""The `kerasdist` command: what it prints, and its exit codes."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

from kerasdist import __main__ as command

may_have_gpus = command._may_have_gpus  # The tests' machine has none.


@pytest.fixture(autouse=True)
def machine_without_gpu_and_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("KERASDIST_NUM_CLONES", raising=False)
    monkeypatch.setattr(command, "_may_have_gpus", lambda: False)
    monkeypatch.setattr(command, "count_gpus", lambda: pytest.fail("This loads TensorFlow."))


def rows_of(output):
    title, *lines = output.splitlines()
    assert title == "Plan"
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines)


def test_plan_of_two_clones(capsys):
    arguments = [
        "--num_clones=2",
        "--clone_on_cpu",
        "--global_batch_size=64",
        "--num_examples=1437",
    ]

    assert command.main(["plan", *arguments]) == 0
    assert rows_of(capsys.readouterr().out) == {
        "strategy": "MirroredStrategy (num_clones=2: 2 logical CPUs of one machine)",
        "devices": "CPU:0, CPU:1",
        "replicas": "2 copies of the model",
        "batch": "64 examples (global), 32 on each replica",
        "last batch": "29 examples, weighted by their number; none dropped",
        "steps per epoch": "23 for 1,437 examples",
    }


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ([], "OneDeviceStrategy (no DeploymentConfig given: one CPU"),
        (["--num_clones=1"], "OneDeviceStrategy (num_clones=1: one CPU"),
        (["--num_replicas=4"], "MultiWorkerMirroredStrategy (num_replicas=4 without ps tasks"),
        (["--num_ps_tasks=2"], "ParameterServerStrategy (num_ps_tasks=2"),
    ],
)
def test_plan_names_the_strategy_of_any_deployment(arguments, strategy, capsys):
    assert command.main(["plan", *arguments]) == 0
    assert rows_of(capsys.readouterr().out)["strategy"].startswith(strategy)


def test_batch_size_is_the_global_one_of_fit(capsys):
    command.main(["plan", "--num_replicas=4", "--global_batch_size=32"])

    assert rows_of(capsys.readouterr().out)["batch"] == "32 examples (global), 8 on each replica"


def test_batch_size_is_one_workers_beside_parameter_servers(capsys):
    command.main(["plan", "--num_replicas=4", "--num_ps_tasks=2", "--global_batch_size=8"])

    assert rows_of(capsys.readouterr().out)["batch"].startswith("8 examples, one worker's step")


def test_gpus_are_counted_where_the_machine_may_have_some(monkeypatch, capsys):
    monkeypatch.setattr(command, "_may_have_gpus", lambda: True)
    monkeypatch.setattr(command, "count_gpus", lambda: 2)

    assert command.main(["plan", "--num_clones=2"]) == 0
    assert rows_of(capsys.readouterr().out)["devices"] == "GPU:0, GPU:1"


@pytest.mark.parametrize(
    ("device", "expected"), [("null", False), ("nvidia0", True), ("kfd", True), ("dxg", True)]
)
def test_a_machine_may_have_gpus_where_there_is_a_device_of_that_name(
    device, expected, tmp_path, monkeypatch
):
    (tmp_path / device).touch()
    monkeypatch.setattr(command, "_DEVICES", tmp_path)

    assert may_have_gpus() == expected or sys.platform != "linux"


def test_an_error_of_ours_is_no_mistake_in_the_arguments(monkeypatch):
    def plan(*_, **__):
        raise ValueError("a bug")

    monkeypatch.setattr(command, "plan_deployment", plan)
    with pytest.raises(ValueError, match=r"^a bug$"):
        command.main(["plan"])


def test_cluster_comes_from_tf_config(monkeypatch, capsys):
    task = {"type": "worker", "index": 1}
    cluster = {"worker": ["a:2222", "b:2222"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

    assert command.main(["plan"]) == 0
    assert "on each of 2 workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("num_ps", "task"),
    [
        ("0", "worker 0 of 3 workers, from torchrun (RANK=0, WORLD_SIZE=3)"),
        ("1", "chief 0 of 1 worker and 1 ps task, from torchrun (RANK=0, WORLD_SIZE=3)"),
    ],
)
def test_cluster_comes_from_a_launcher_and_nobody_is_waited_for(num_ps, task, monkeypatch, capsys):
    numbers = {"RANK": "0", "WORLD_SIZE": "3", "KERASDIST_NUM_PS": num_ps}
    for name, value in {**numbers, "MASTER_ADDR": "node-0"}.items():
        monkeypatch.setenv(name, value)

    assert command.main(["plan"]) == 0
    assert rows_of(capsys.readouterr().out)["task"] == task


def test_clones_come_from_the_launch(monkeypatch, capsys):
    task = {"type": "worker", "index": 1}
    cluster = {"worker": ["a:2222", "b:2222"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    monkeypatch.setenv("KERASDIST_NUM_CLONES", "2")

    assert command.main(["plan"]) == 0
    assert rows_of(capsys.readouterr().out)["replicas"].startswith("4 copies of the model")


def test_backup_workers_come_from_the_launch(monkeypatch, capsys):
    cluster = {"chief": ["d:2222"], "worker": ["a:2222", "b:2222", "e:2222"], "ps": ["c:2222"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    monkeypatch.setenv("KERASDIST_NUM_BACKUP_WORKERS", "1")

    assert command.main(["plan", "--global_batch_size=32", "--num_examples=100"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert "each update the mean of the first 2 of 3 gradients" in rows["strategy"]
    assert rows["steps per epoch"] == "2 for 100 examples"


def test_clones_of_the_launch_must_be_a_number(monkeypatch, capsys):
    monkeypatch.setenv("KERASDIST_NUM_CLONES", "x")

    assert command.main(["plan"]) == 2
    assert "must be a number. Received: KERASDIST_NUM_CLONES='x'" in capsys.readouterr().err


def test_an_evaluator_is_beside_the_cluster(monkeypatch, capsys):
    cluster, task = {"worker": ["a:2222", "b:2222"]}, {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

    assert command.main(["plan"]) == 0
    assert rows_of(capsys.readouterr().out)["strategy"].startswith("OneDeviceStrategy")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--global_batch_size=0"],
            "`--global_batch_size` must be at least 1. Received: --global_batch_size=0.",
        ),
        (["--num_examples=-1"], "`--num_examples` must be at least 1. Received: --num_examples=-1"),
        (["--num_clones=0"], "`--num_clones` must be at least 1. Received: --num_clones=0."),
        (["--num_clones=3"], "Received: --num_clones=3; GPUs that TensorFlow sees: none."),
        (["--num_clones=3"], "Use fewer clones, or --clone_on_cpu for logical CPUs."),
        (["--worker_job_name="], "`--worker_job_name` must not be empty."),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert command.main(["plan", *arguments]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ")
    assert message in printed.err


def test_mistake_in_tf_config_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", "{'cluster': {}}")

    assert command.main(["plan"]) == 2
    assert re.fullmatch(r"error: TF_CONFIG: Not valid JSON.*\n", capsys.readouterr().err)


def plan_into(output, **environ):
    """Returns the exit code and stderr of a plan that is printed into a file."""
    done = subprocess.run(
        [sys.executable, "-m", "kerasdist", "plan"],
        stdout=output,
        stderr=subprocess.PIPE,
        env=os.environ | environ,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_reads_is_no_error_of_ours(unbuffered):
    reader, output = os.pipe()
    os.close(reader)
    try:
        assert plan_into(output, PYTHONUNBUFFERED=unbuffered) == (141, "")
    finally:
        os.close(output)


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_full_is_one_line(unbuffered):
    with open("/dev/full", "w") as output:
        exit_code, errors = plan_into(output, PYTHONUNBUFFERED=unbuffered)

    assert exit_code == 1
    assert errors.count("\n") == 1
    assert errors.startswith("error: The output cannot be written: [Errno 28] No space left")


@pytest.mark.parametrize("number", [0, 5])
def test_doctor_compares_steps_of_a_program_alone(number, capsys):
    assert command.main(["doctor", f"--steps={number}"]) == 2
    assert "`--steps` needs a program to examine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--num_clone=2"], "--num_clone=2"),  # No abbreviations.
        (["plan", "--num_clones=two"], "'two'"),
        (["trian"], "'trian'"),
        ([], "COMMAND"),
    ],
)
def test_unknown_arguments_are_named_with_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        ("launch --worker 2 -- python train.py", "--workers"),
        ("launch --worker=2 -- python train.py", "--workers"),
        ("launch --num_workers 2 -- python train.py", "--workers"),
        ("launch --num-workers=2 -- python train.py", "--workers"),
        ("launch --num_ps 2 -- python train.py", "--ps"),
        ("launch --log_dir logs -- python train.py", "--log-dir"),
        ("doctor --onyl clipnorm", "--only"),
        ("plan --num-clones=2", "--num_clones"),
        ("plan --batch_size=32", "--global_batch_size"),
        ("launch -w 2 -- python train.py", "--workers"),
        ("launch -w=2 -- python train.py", "--workers"),
        ("launch -n 2 -- python train.py", None),  # Which is --workers elsewhere, and no --network.
        ("launch -x -- python train.py", None),
    ],
)
def test_a_flag_that_is_nearly_right_is_named_with_the_usage_of_its_command(
    arguments, near, capsys
):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments.split())

    printed = capsys.readouterr()
    name, flag, *_ = arguments.split()
    assert (stopped.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"usage: python -m kerasdist {name} [")
    assert f"{name}: error: unrecognized arguments: {flag}" in printed.err
    assert re.findall('Did you mean "(.*?)"[?]', printed.err) == ([near] if near else [])


@pytest.mark.parametrize("name", ["launch", "doctor"])
def test_a_module_is_run_by_python_behind_the_dashes(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([name, "-m", "package.module"])

    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "unrecognized arguments: -m\nPython runs a module, after --: python -m kerasdist" in told


@pytest.mark.parametrize(
    ("name", "near"), [("launc", "launch"), ("help", "--help"), ("shwo", "show"), ("train", None)]
)
def test_a_command_that_is_nearly_right_is_named(name, near, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([name])

    told = capsys.readouterr().err
    assert (stopped.value.code, f"invalid choice: '{name}'" in told) == (2, True)
    assert re.findall('Did you mean "(.*?)"[?]', told) == ([near] if near else [])


def test_version_names_what_a_report_should(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--version"])

    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for name in ("kerasdist", "Keras", "TensorFlow"):
        assert f"{name} {importlib.metadata.version(name.lower())}" in printed


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"]])
def test_help_is_printed_with_exit_code_0(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)

    assert stopped.value.code == 0
    assert "strategy" in capsys.readouterr().out
