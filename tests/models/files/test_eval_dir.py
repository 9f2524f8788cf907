"""The directory of evaluations."""

import json
from pathlib import Path

import pytest

from models.files.eval_dir import EvalDir
from models.usage_error import UsageError


@pytest.mark.parametrize("torn", ['{"step": 1, "Acc', '{"step": 1, "Accuracy": 0.9}'])
def test_a_line_torn_by_a_kill_does_not_spoil_the_next_one(tmp_path, torn):
    eval_dir = EvalDir(tmp_path)
    eval_dir.results.write_text(torn)  # Without the end of the line.

    eval_dir.write(2, {"Accuracy": 0.5})
    eval_dir.write(3, {"Accuracy": 0.7})

    assert eval_dir.steps() >= {2, 3}
    assert json.loads(eval_dir.results.read_text().splitlines()[-1])["step"] == 3
    assert not eval_dir.is_best(2)
    assert eval_dir.is_best(3) == ("0.9" not in torn)


def test_lines_of_others_are_left_out(tmp_path):
    eval_dir = EvalDir(tmp_path)
    others = [
        b"5",
        b"[]",
        b"{}",
        b'{"step": "7", "Accuracy": 1}',
        b'{"step": 7}',
        b"\xff",
        b"[" * 9999,
    ]
    eval_dir.results.write_bytes(b"\n".join([*others, b'{"step": 2, "Accuracy": 0.5}']))

    assert eval_dir.steps() == {2}
    assert eval_dir.is_best(2)


def test_checking_leaves_the_files_of_others_alone(tmp_path):
    (tmp_path / "check").write_text("mine")

    EvalDir(tmp_path).check()

    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_directory_that_cannot_be_written_to_is_refused():
    with pytest.raises(UsageError, match="--eval_dir '/proc/fs' cannot be written to: "):
        EvalDir(Path("/proc/fs")).check()


def test_an_evaluation_that_is_not_recorded_is_not_the_best(tmp_path):
    assert not EvalDir(tmp_path).is_best(7)
