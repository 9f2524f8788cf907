"""kerasdist.new_checkpoints: the checkpoints of a training that runs elsewhere."""

import threading
import types

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import evaluation
from kerasdist.checkpoints import Folder
from tests.clock import Clock


def write(folder, step, *, is_finished=False):
    record, arrays = {"is_finished": is_finished}, {"seed": np.ones(1)}
    folder.write(step, record, arrays, lambda file: file.write(b"weights"))


def looked(path, **arguments):
    defaults: dict = {"every_secs": 0.01, "timeout_secs": 0.02}
    return kerasdist.new_checkpoints(path, **(defaults | arguments))


def test_each_one_that_comes_is_yielded_until_the_training_is_finished(tmp_path, capfd):
    folder, steps = Folder(str(tmp_path / "run")), []
    threading.Timer(0.1, write, (folder, 1)).start()  # There is no folder yet.
    for step, path in looked(tmp_path / "run", timeout_secs=60):
        steps.append(step)
        assert path == folder.path_of(step)
        if step == 1:
            write(folder, 2)
            write(folder, 3)  # Both came during the evaluation.
        elif step == 3:
            write(folder, 3, is_finished=True)  # As at the end: the same step once more.

    assert steps == [1, 3]
    assert "is finished at step 3" in capfd.readouterr().err


def test_it_ends_when_nothing_comes(tmp_path, capfd):
    write(Folder(str(tmp_path)), 5)

    assert [step for step, _ in looked(tmp_path)] == [5]
    assert list(looked(tmp_path, after_step=5)) == []
    assert f"No new checkpoint in {tmp_path} for 0.02 s." in capfd.readouterr().err


def test_it_waits_no_longer_than_it_is_told(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(
        evaluation, "time", types.SimpleNamespace(monotonic=clock, sleep=clock.sleep)
    )

    assert list(looked(tmp_path, every_secs=600, timeout_secs=700)) == []
    assert clock() == 1700


def test_a_damaged_one_is_left_out(tmp_path):
    folder = Folder(str(tmp_path))
    write(folder, 1)
    write(folder, 2)
    (tmp_path / "step-00000002" / "state.npz").write_bytes(b"")

    with pytest.warns(UserWarning, match="of step 2 cannot be read"):
        assert [step for step, _ in looked(tmp_path)] == [1]


def test_what_is_yielded_can_be_evaluated(tmp_path):
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")

    def make_model():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    with kerasdist.make_strategy().scope():
        trained = make_model()
    trained.fit(x, y, verbose=0, callbacks=[kerasdist.callbacks.Checkpoint(tmp_path)])

    model = make_model()
    [(step, checkpoint)] = looked(tmp_path)
    kerasdist.warm_start(model, checkpoint)
    assert step == 1
    assert model.evaluate(x, y, verbose=0) == trained.evaluate(x, y, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": 3}, "`directory` must be the path of a folder"),
        ({"after_step": 1.5}, "`after_step` must be"),
        ({"every_secs": 0}, "`every_secs` must be positive"),
        ({"timeout_secs": -1}, "`timeout_secs` must be positive"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):  # At once, not in the loop.
        kerasdist.new_checkpoints(**({"directory": "run"} | arguments))
