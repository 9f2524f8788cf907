"""`python -m models.migrate`: what it prints, and that the new command runs."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from models import evaluate, export, legacy, migrate, nets, train

ROOT = Path(__file__).parents[2]
MEAN_THE_SAME = "worker_replicas", "train_image_size", "eval_image_size"  # By default.
COMMANDS = {"models.train": train, "models.evaluate": evaluate, "models.export": export}


def migrated(line, capsys):
    """Returns the words of the new command, and the sections after it by their titles."""
    capsys.readouterr()
    assert migrate.main(["--", *shlex.split(line)]) == 0
    title, command, *sections = capsys.readouterr().out.split("\n\n")
    assert title == "The new command:"
    told = dict(each.split(":\n", 1) for each in sections)
    command = command.replace("\\\n", "")  # As a shell does.
    return shlex.split(command), {name: " ".join(text.split()) for name, text in told.items()}


def parsed(words):
    """Returns the command's module and its arguments, once they are parsed by its own flags."""
    [number] = [number for number, word in enumerate(words) if word in COMMANDS]
    module, argv = COMMANDS[words[number]], words[number + 1 :]
    module.define_flags(values := flags.FlagValues())
    assert values(["", *argv]) == [""]
    return module, argv


def test_all_differences_are_told_at_once(capsys):
    words, told = migrated(
        "CUDA_VISIBLE_DEVICES=0,1 python -u research/slim/train_image_classifier.py --master= "
        "--sync_replicas --worker_replicas=3 --num_ps_tasks=1 --task 2 --dataset_dir='my data' "
        "--num_clones=2 --quantize_delay=2000 --log_every_n_steps=10 --bogus=3 --weight_decay=0",
        capsys,
    )

    assert words[:9] == shlex.split(
        "CUDA_VISIBLE_DEVICES=0,1 python -m kerasdist launch --workers 3 --ps 1"
    )
    _, argv = parsed(words)
    assert {"--dataset_dir=my data", "--dataset_name=imagenet", "--num_clones=2"} < set(argv)
    assert {"--replicas_to_aggregate=1", "--save_summaries_secs=600"} < set(argv)
    assert not {word for word in argv if word.startswith(("--task", "--master", "--quantize"))}
    assert "--num_clones" in told["The same"]
    assert "--master: left out, it happens anyway" in told["The same"]
    others = told["Not given, and another default here"]
    assert "--train_dir=/tmp/tfmodel/: here, there is none" in others
    assert "--replicas_to_aggregate=1: here, it is -1" in others
    assert "--task=2: the launcher, TF_CONFIG" in told["Done otherwise"]
    assert "--quantize_delay=2000: nets are not trained for" in told["Not there"]
    assert told["Unknown to that program, and left out"] == "--bogus=3"


@pytest.mark.processes
def test_the_answer_needs_no_tensorflow():
    program = """
import sys
from models.__main__ import main
assert main(["migrate", "--", "freeze_graph", "--input_graph=lenet.pb"]) == 0
assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
"""
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("name", legacy.PROGRAMS)
def test_other_defaults_are_told(name):
    program = legacy.PROGRAMS[name]
    COMMANDS[f"models.{program.command}"].define_flags(here := flags.FlagValues())

    for flag in program.flags.values():
        default = here[flag.here].default if flag.here else None
        if flag.always.startswith("here, "):
            assert flag.always == legacy.default_is(default)
            assert flag.default != default
        elif flag.here not in ("", *MEAN_THE_SAME) and flag.default and not flag.always:
            assert flag.default == default


def test_all_nets_of_slim_are_known():
    assert set(legacy.NETS) == {*nets.NETS, *nets.ABSENT}


def test_the_dashes_before_the_command_line_may_be_left_out(capsys):
    line = "python train_image_classifier.py --num_clones=2 --help"
    assert migrate.main(line.split()) == 0
    told = capsys.readouterr().out

    assert "--num_clones=2" in told
    assert migrate.main(["--", *line.split()]) == 0
    assert capsys.readouterr().out == told


def test_a_net_that_is_not_there_is_no_other_flag(capsys):
    _, told = migrated("eval_image_classifier.py --model_name=pnasnet_large", capsys)

    assert "--model_name" not in told.get("The same", "")
    assert "--model_name=pnasnet_large: keras.applications has no PNASNet" in told["Not there"]


def test_the_batch_of_all_gpus_is_divided(capsys):
    words, told = migrated(
        "bazel-bin/inception/imagenet_train --num_gpus=8 --batch_size=256 --max_steps=100000 "
        "--fine_tune --pretrained_model_checkpoint_path=/tmp/inception_v3.ckpt",
        capsys,
    )

    _, argv = parsed(words)
    for word in (
        *("--num_clones=8", "--batch_size=32", "--max_number_of_steps=100000"),
        *("--learning_rate=0.1", "--num_epochs_per_decay=3.75", "--moving_average_decay=0.9999"),
        "--checkpoint_exclude_scopes=InceptionV3/Logits,InceptionV3/AuxLogits",
        *("--preprocessing_name=inception_full", "--loss_averages_decay=0.9"),
    ):
        assert word in argv
    assert "--batch_size=256: --batch_size=32" in told["Another name, or another value"]
    assert "--label_smoothing=0.1" in told["No flag there, but one here"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "python imagenet_distributed_train.py --job_name=worker --task_id=1 --ps_hosts=a:2222 "
            "--worker_hosts=a:2223,b:2222 --data_dir=d",
            {"--chief_host=a:2224", "--num_replicas_to_aggregate=-1", "--log_every_n_steps=1"},
        ),
        ("python flowers_train.py --checkpoint_dir=runs/1", {"--dataset_name=imagenet"}),
        ("bazel-bin/inception/imagenet_eval --run_once", {"--max_num_batches=1563"}),
        ("python -m inception.flowers_eval", {"--continuous", "--eval_interval_secs=300"}),
        ("eval_image_classifier.py --eval_image_size=224", {"--eval_dir=/tmp/tfmodel/"}),
        (
            "python export_inference_graph.py --is_training=false --output_file=/tmp/graph.pb",
            {"--export_dir=/tmp/graph", "--model_name=inception_v3"},
        ),
        (
            "freeze_graph --input_graph=/tmp/resnet_v1_50_inf.pb --output_graph=/tmp/frozen.pb "
            "--input_checkpoint=resnet.ckpt --input_binary=true",
            {"--model_name=resnet_v1_50", "--checkpoint_path=resnet.ckpt"},
        ),
    ],
)
def test_each_program_becomes_a_command_whose_flags_take_it(line, expected, capsys):
    words, _ = migrated(line, capsys)

    _, argv = parsed(words)
    assert expected <= set(argv)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python my_train.py --num_gpus=2", "No legacy program is named in 'python my_train.py"),
        ("imagenet_train --num_gpus=2 --batch_size=3", "--batch_size=3 is that of all GPUs"),
        ("imagenet_train --num_gpus=two", "flag --num_gpus=two"),
    ],
)
def test_what_cannot_be_translated_is_a_mistake(line, message, capsys):
    assert migrate.main(["--", *line.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.thorough
def test_the_new_commands_run(tmp_path, data_dir, capsys):
    run, data = tmp_path / "run", f"--dataset_name=digits --dataset_dir={data_dir}"
    data += " --model_name=lenet --batch_size=16"
    for line in (
        f"train_image_classifier.py {data} --train_dir={run} --dataset_split_name=train[:40] "
        "--max_number_of_steps=2 --clone_on_cpu --master= --sync_replicas --alsologtostderr",
        f"eval_image_classifier.py {data} --checkpoint_path={run} --eval_dir={tmp_path}/eval "
        "--max_num_batches=1",
        f"freeze_graph --input_graph=lenet.pb --input_checkpoint={run} "
        f"--output_graph={tmp_path}/frozen.pb",
    ):
        module, argv = parsed(migrated(line, capsys)[0])
        assert module.main(argv) == 0

    assert (tmp_path / "frozen/saved_model.pb").exists()
