"""Ray starts the workers, and starts them again after one was killed."""

import keras
import numpy as np
import pytest

from tests.libraries.examples import example, needs
from tests.schedulers.processes import ROOT

pytestmark = needs("ray")

_KILLED_ONCE = """
import os
from pathlib import Path

import kerasdist


def kill_once(epoch, folder):
    if epoch == 2 and not kerasdist.is_chief() and not Path(folder, "killed").exists():
        Path(folder, "killed").touch()
        os.kill(os.getpid(), 9)


"""


@pytest.mark.timeout(400)
def test_ray_goes_on_after_a_worker_was_killed(processes, folder):
    program = example("Ray Train").replace(
        "callbacks=[checkpoint]",
        "callbacks=[checkpoint, keras.callbacks.LambdaCallback("
        "on_epoch_begin=lambda epoch, logs: kill_once(epoch, config['folder']))]",
    )
    (folder / "program.py").write_text(_KILLED_ONCE + program)

    # Not tests/lean, which hides packages that Ray needs.
    outcome = processes.run("python program.py", timeout_secs=300, PYTHONPATH=str(ROOT))

    assert outcome.exit_code == 0, outcome.output
    assert (folder / "killed").exists()
    saved = keras.saving.load_model(folder / "model.keras").get_weights()
    for ours, theirs in zip(saved, _weights_of_one_device(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def _weights_of_one_device() -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(64, 4))
    model.fit(x, x.sum(axis=1), batch_size=16, epochs=4, shuffle=False, verbose=0)
    return model.get_weights()
