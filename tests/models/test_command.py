"""How a command ends: its exit code and the one message."""

import re

import pytest
from absl import flags

import kerasdist
from models import command, evaluate, legacy_flags, train
from models.usage_error import UsageError


def define_flags(values):
    flags.DEFINE_integer("batch_size", 32, "Examples.", lower_bound=1, flag_values=values)


def run(argv, action=lambda values: 0):
    return command.run(action, define_flags=define_flags, argv=argv, description="A command.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batchsize=1"], "Unknown command line flag 'batchsize'. Did you mean: batch_size ?"),
        (["--bogus=1"], "Unknown command line flag 'bogus'\n`--help` lists the flags."),
        (
            ["--sync_replicas"],
            "There is no --sync_replicas here: workers without parameter servers",
        ),
        (["--max_steps=9"], "There is no --max_steps here: --max_number_of_steps says"),
        (["--batch_size=0"], "flag --batch_size=0: 0 is not a positive integer"),
        (["--batch_size=many"], "flag --batch_size=many"),
        (["32"], "Unexpected argument '32'."),
    ],
)
def test_a_mistake_ends_with_one_message_and_code_2(argv, message, capsys):
    assert run(argv) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_answers_are_of_flags_that_are_not_there_and_name_flags_that_are():
    known = set()
    for module in (train, evaluate):
        module._define_flags(values := flags.FlagValues())
        known |= set(values)

    assert not set(legacy_flags.ANSWERS) & known
    assert set(re.findall(r"--(\w+)", " ".join(legacy_flags.ANSWERS.values()))) <= known


def test_a_mistake_found_by_the_action_ends_with_code_2(capsys):
    def action(values):
        raise UsageError("Unknown --model_name 'x'.")

    assert run([], action) == 2
    assert capsys.readouterr().err == "error: Unknown --model_name 'x'.\n"


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
    assert "--batch_size" in capsys.readouterr().out


def test_flags_of_one_call_are_not_seen_by_the_next():
    seen = []
    for argv in ["--batch_size=8"], []:
        run(argv, lambda values: seen.append(values.batch_size) or 0)

    assert seen == [8, 32]
