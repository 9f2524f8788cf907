"""`python -m kerasdist inspect`: what checkpoints hold, and how they differ."""

import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from kerasdist.__main__ import main
from kerasdist.callbacks import Checkpoint
from tests import strategies
from tests.callbacks import hand_loop


@pytest.fixture
def run(tmp_path):
    model = hand_loop.make_model(strategies.get("one device"))
    hand_loop.fit(model, [Checkpoint(tmp_path, every_steps=4)])
    return tmp_path


def test_what_a_checkpoint_holds(run, capsys):
    assert main(["inspect", str(run)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "step-00000014: step 14, epoch 2 and 0 steps of the next, written 20" in lines[0]
    assert f"keras {keras.__version__}" in lines[0]
    assert lines[3].split() == ["head/0", "float32", "[8,", "1]", "32"]
    assert lines[-1] == "4 arrays, 260 bytes"


def test_the_step_is_that_of_the_name_also_after_another_compile(tmp_path, capsys):
    model = hand_loop.make_model(strategies.get("one device"))
    for _ in range(2):
        model.compile("sgd", "mse")
        hand_loop.fit(model, [Checkpoint(tmp_path)])

    assert main(["inspect", str(tmp_path)]) == 0

    assert "step-00000028: step 28, epoch 2" in capsys.readouterr().out


def test_a_copy_of_one_checkpoint(run, capsys, monkeypatch):
    shutil.copytree(run / "step-00000012", run / "best")
    monkeypatch.chdir(run / "best")

    for path in ("../best", "."):
        assert main(["inspect", path]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{path}: step 12, epoch 1 and 5 steps")
        assert lines[-1] == "4 arrays, 260 bytes"


def test_what_is_said_is_of_the_checkpoint_that_is_read(run, capsys):
    (run / "step-00000014" / "state.npz").write_bytes(b"")

    with pytest.warns(UserWarning, match="The checkpoint of step 14 cannot be read") as told:
        assert main(["inspect", str(run)]) == 0

    assert len(told) == 1  # Nothing is trained.
    assert "step-00000012: step 12, epoch 1 and" in capsys.readouterr().out


def test_how_two_differ(run, capsys):
    assert main(["inspect", str(run / "step-00000012"), str(run)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" by ")[0] for line in lines[:-1]] == [
        f"{name}: differs" for name in ("hidden/0", "hidden/1", "head/0", "head/1")
    ]
    assert lines[-1] == "0 arrays are equal, 4 differ"
    assert main(["inspect", str(run), str(run)]) == 0
    assert capsys.readouterr().out == "4 arrays are equal, 0 differ\n"


def test_other_names_and_shapes(tmp_path, capsys):
    for name, shape in (("a", (6,)), ("b", (5,))):
        model = keras.Sequential([keras.Input(shape), keras.layers.Dense(2, name="only")])
        model.save_weights(tmp_path / f"{name}.weights.h5")
    keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name=name)]).save(
        tmp_path / "c.keras"
    )

    assert main(["inspect", *(str(tmp_path / f"{name}.weights.h5") for name in "ab")]) == 0
    assert "only/0: shape [6, 2] and [5, 2]" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "b.weights.h5"), str(tmp_path / "c.keras")]) == 0
    assert f"b/1: only in {tmp_path / 'c.keras'}" in capsys.readouterr().out


def test_not_a_number_is_a_difference(tmp_path, capsys):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="only")])
    model.save_weights(tmp_path / "a.weights.h5")
    model.set_weights([np.full((2, 1), np.nan), np.zeros(1)])
    model.save_weights(tmp_path / "b.weights.h5")

    assert main(["inspect", *(str(tmp_path / f"{name}.weights.h5") for name in "ab")]) == 0
    assert "only/0: differs by inf at most" in capsys.readouterr().out


def test_what_is_not_a_number_in_both_is_no_difference(tmp_path, capsys):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="only")])
    for name, value in (("a", 1.0), ("b", 1.5)):
        model.set_weights([np.array([[np.nan], [value]]), np.zeros(1)])
        model.save_weights(tmp_path / f"{name}.weights.h5")

    assert main(["inspect", *(str(tmp_path / f"{name}.weights.h5") for name in "ab")]) == 0
    assert "only/0: differs by 0.5 at most" in capsys.readouterr().out


def test_wrong_paths_are_one_line(tmp_path, capsys):
    (tmp_path / "text").write_text("")
    for name in ("nothing", "nothing.keras", "", "text"):
        assert main(["inspect", str(tmp_path / name)]) == 2
    assert main(["inspect", "a", "b", "c"]) == 2

    nothing, keras_file, folder, text, number = capsys.readouterr().err.splitlines()
    for line, name in ((nothing, "nothing"), (keras_file, "nothing.keras")):
        begin = f"error: There are no weights at '{tmp_path / name}': no such file or folder. Name"
        assert line.startswith(begin)
    assert folder.startswith(f"error: There are no weights at '{tmp_path}'. Name a folder")
    assert text.startswith(f"error: There are no weights at '{tmp_path / 'text'}'. Name a folder")
    assert number == "error: Name one checkpoint, or two. Received: 3."


def test_the_folder_of_a_run_names_the_weights_in_it(tmp_path, capsys):
    for name in ("checkpoints/step-00000004", "train"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "model.keras").touch()

    assert main(["inspect", str(tmp_path)]) == 2

    near = f"{tmp_path}/checkpoints, {tmp_path}/model.keras"
    assert f"There are no weights at '{tmp_path}', but at {near}." in capsys.readouterr().err


@pytest.mark.processes
def test_a_wrong_path_needs_no_tensorflow(tmp_path):
    source = f"""
import sys
from kerasdist.__main__ import main
assert main(["inspect", {str(tmp_path)!r}]) == 2
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
