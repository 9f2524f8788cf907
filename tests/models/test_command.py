"""How a command ends: its exit code and the one message."""

import re
import sys
from logging import getLogger
from pathlib import Path

import pytest
from absl import flags, logging

import kerasdist
from kerasdist.training.report import log_lines
from models import command, evaluate, export, legacy, train
from models.usage_error import UsageError


def define_flags(values):
    flags.DEFINE_bool("clone_on_cpu", False, "Where.", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "Examples.", lower_bound=1, flag_values=values)


def run(argv, action=lambda values: 0):
    return command.run(
        action,
        define_flags=define_flags,
        argv=argv,
        description="A command.",
        replaces=legacy.flags_of("train"),
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batchsize=1"], "Unknown command line flag 'batchsize'. Did you mean: batch_size ?"),
        (["--bogus=1"], "Unknown command line flag 'bogus'\n`--help` lists the flags."),
        (
            ["--quantize_delay=0"],
            "flag --quantize_delay=0: there is no --quantize_delay here: nets are not trained for",
        ),
        (["--max_steps=9"], "there is no --max_steps here: it is --max_number_of_steps."),
        (["--fine_tune"], "there is no --fine_tune here: --checkpoint_exclude_scopes=Inception"),
        (["--batch_size=0"], "flag --batch_size=0: 0 is not a positive integer"),
        (["--batch_size=many"], "flag --batch_size=many"),
        (
            ["--clone_on_cpu=maybe"],
            "error: flag --clone_on_cpu=maybe: it is neither true nor false\n",
        ),
        (["32"], "Unexpected argument '32'."),
    ],
)
def test_a_mistake_ends_with_one_message_and_code_2(argv, message, capsys):
    assert run(argv) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.parametrize("value", ["caf\udce9", "\x1b[2J", "a\nb"])
def test_a_flag_that_cannot_be_printed_is_named(value, capsys):
    def define(values):
        flags.DEFINE_string("train_dir", None, "Where.", flag_values=values)

    argv = [f"--train_dir={value}"]
    assert command.run(lambda values: 0, define_flags=define, argv=argv, description="") == 2
    assert f"error: --train_dir={value!r} cannot be printed" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_one_line_and_code_1(capsys):
    assert run([], lambda values: Path(f"/{'a' * 300}").read_text()) == 1

    assert capsys.readouterr().err.startswith("error: [Errno 36] File name too long: '/aaa")


def test_an_error_of_a_connection_is_raised_for_those_who_hear_of_a_lost_task():
    def action(values):
        raise ConnectionResetError(104, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        run([], action)


@pytest.mark.parametrize("name", ["a\nerror: b.png", "\x1b[2Ja.png", "caf\udce9.png"])
def test_a_message_with_names_is_one_line_that_steers_no_terminal(name, capsys):
    def action(values):
        raise UsageError(f"{name} cannot be read.")

    assert run([], action) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.isprintable()


def test_an_error_comes_after_what_was_printed_before(tmp_path, monkeypatch):
    def action(values):
        print("the plan")
        raise UsageError("another training")

    with open(tmp_path / "both", "w") as out, open(tmp_path / "both", "a", buffering=1) as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        run([], action)

    assert (tmp_path / "both").read_text() == "the plan\nerror: another training\n"


def test_legacy_flags_that_say_what_happens_anyway_are_accepted():
    anyway = ["--master=", "--quantize_delay=-1", "--nofine_tune", "--alsologtostderr"]

    assert run([*anyway, "--startup_delay_steps=0"]) == 0


def flags_of(module):
    module.define_flags(values := flags.FlagValues())
    return values


@pytest.mark.parametrize("name", legacy.PROGRAMS)
def test_each_legacy_flag_is_here_or_has_an_answer_that_names_flags_that_are(name):
    program = legacy.PROGRAMS[name]
    commands = {"train": train, "evaluate": evaluate, "export": export}
    known = {command: set(flags_of(module)) for command, module in commands.items()}
    here = known[program.command]

    assert {flag.here for flag in program.flags.values()} - {""} <= here
    assert not {name for name, flag in program.flags.items() if flag.here != name} & here
    assert all(flag.answer for flag in program.flags.values())
    assert set(program.fixed) <= here
    told = [flag.answer for flag in program.flags.values()]
    named = set(re.findall(r"--(\w+)", " ".join([*told, *program.notes])))
    assert named <= set.union(*known.values(), program.flags, {"workers", "ps"})


# The flags of train_image_classifier and eval_image_classifier, with their defaults.
TRAIN_FLAGS = {
    **{"num_clones": 1, "clone_on_cpu": False, "num_preprocessing_threads": 4, "task": 0},
    "num_readers": 4,
    **{"log_every_n_steps": 10, "save_interval_secs": 600, "weight_decay": 0.00004},
    **{"optimizer": "rmsprop", "adadelta_rho": 0.95, "adagrad_initial_accumulator_value": 0.1},
    **{"adam_beta1": 0.9, "adam_beta2": 0.999, "opt_epsilon": 1.0, "momentum": 0.9},
    **{"ftrl_learning_rate_power": -0.5, "ftrl_initial_accumulator_value": 0.1},
    **{"ftrl_l1": 0.0, "ftrl_l2": 0.0, "rmsprop_momentum": 0.9, "rmsprop_decay": 0.9},
    **{"learning_rate_decay_type": "exponential", "learning_rate": 0.01},
    **{"end_learning_rate": 0.0001, "label_smoothing": 0.0, "learning_rate_decay_factor": 0.94},
    **{"num_epochs_per_decay": 2.0, "moving_average_decay": None, "dataset_dir": None},
    **{"dataset_split_name": "train", "labels_offset": 0, "model_name": "inception_v3"},
    **{"preprocessing_name": None, "batch_size": 32, "train_image_size": None},
    **{"max_number_of_steps": None, "use_grayscale": False, "checkpoint_path": None},
    **{"checkpoint_exclude_scopes": None, "trainable_scopes": None},
    **{"ignore_missing_vars": False, "sync_replicas": False},
}
EVAL_FLAGS = {
    **{"batch_size": 100, "max_num_batches": None, "num_preprocessing_threads": 4},
    **{"dataset_split_name": "test", "dataset_dir": None, "labels_offset": 0},
    **{"preprocessing_name": None, "moving_average_decay": None, "eval_image_size": None},
    **{"use_grayscale": False},
}
# Of another default here: none is written, waited for or read that nobody has named.
OTHERS = {
    train: {
        *("train_dir", "save_summaries_secs", "dataset_name", "worker_replicas", "num_ps_tasks"),
        "replicas_to_aggregate",
    },
    evaluate: {"checkpoint_path", "eval_dir", "dataset_name", "model_name"},
}
ANSWERED = {
    train: {"master", "quantize_delay", "startup_delay_steps", "alsologtostderr"},
    evaluate: {"master", "quantize"},
}
PROGRAMS = {train: "train_image_classifier", evaluate: "eval_image_classifier"}


@pytest.mark.parametrize(("module", "defaults"), [(train, TRAIN_FLAGS), (evaluate, EVAL_FLAGS)])
def test_the_flags_of_slim_have_its_defaults_or_an_answer(module, defaults):
    values, there = flags_of(module), legacy.PROGRAMS[PROGRAMS[module]].flags

    assert {name: values[name].default for name in defaults} == defaults
    assert {name: there[name].default for name in defaults} == defaults
    assert OTHERS[module] <= set(values)
    assert ANSWERED[module] <= set(there)


def test_a_mistake_found_by_the_action_ends_with_code_2(capsys):
    def action(values):
        raise UsageError("Unknown --model_name 'x'.")

    assert run([], action) == 2
    assert capsys.readouterr().err == "error: Unknown --model_name 'x'.\n"


def test_lines_about_a_training_stay_as_they_are_when_absl_has_warned(monkeypatch, capsys):
    strategy = kerasdist.make_strategy()  # It says what it has chosen, once in a process.

    def action(values):
        logging.warning("of a dataset")
        log_lines.say(strategy, "step 3")
        return 0

    capsys.readouterr()
    monkeypatch.setattr(getLogger(), "handlers", [])
    assert run([], action) == 0
    assert capsys.readouterr().err.splitlines() == ["WARNING:absl:of a dataset", "step 3"]


def test_a_cluster_that_does_not_start_ends_with_code_1(capsys):
    def action(values):
        raise kerasdist.ClusterStartError("worker 1 (b:1) never answered.")

    assert run([], action) == 1
    assert capsys.readouterr().err == "error: worker 1 (b:1) never answered.\n"


def test_ctrl_c_ends_with_code_130(capsys):
    def action(values):
        raise KeyboardInterrupt

    assert run([], action) == 130
    assert "Interrupted." in capsys.readouterr().err


def test_help_lists_the_flags(capsys):
    assert run(["--help"]) == 0
    told = capsys.readouterr().out
    assert "--batch_size" in told
    assert "--fine_tune" not in told
    assert "python -m models.migrate -- python train_image_classifier.py" in told.splitlines()[-1]


def test_flags_of_one_call_are_not_seen_by_the_next():
    seen = []
    for argv in ["--batch_size=8"], []:
        run(argv, lambda values: seen.append(values.batch_size) or 0)

    assert seen == [8, 32]
