"""Trainings of processes that a launcher tells no more than a rank and one address."""

import os
import sys

import numpy as np
import pytest

from tests import fork_server
from tests.test_preflight import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PROGRAM = """
import json, sys
import keras, numpy as np
import kerasdist

def train():
    keras.utils.set_random_seed(3)
    strategy = kerasdist.make_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(53, 4)).astype("float32")
    history = model.fit(x, x.sum(axis=1, keepdims=True), batch_size=8, epochs=2, verbose=0)
    return np.concatenate([each.ravel() for each in model.get_weights()]), history.history["loss"]

weights, loss = train()
if kerasdist.is_chief():
    np.savez(sys.argv[1], weights=weights, loss=loss)
"""


def train(tmp_path, name, *environs):
    """Returns what the first process has trained, and what each has written."""
    (tmp_path / "train.py").write_text(PROGRAM)
    result = tmp_path / f"{name}.npz"
    found = fork_server.run_each(
        [sys.executable, "train.py", str(result)],
        cwd=tmp_path,
        envs=[{**os.environ, **environ} for environ in environs],
        timeout_secs=240,
    )
    assert [code for code, _ in found] == [0] * len(environs), found
    return dict(np.load(result)), [output for _, output in found]


def torchrun(size, **more):
    host, _, port = free_addresses(1)[0].rpartition(":")
    of_all = {"WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": port, **more}
    return [{**of_all, "RANK": str(rank)} for rank in range(size)]


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), "alone", {})[0]


def check(found, truth):
    np.testing.assert_allclose(found["weights"], truth["weights"], atol=1e-5)
    np.testing.assert_allclose(found["loss"], truth["loss"], rtol=1e-5)


def test_two_workers_are_one_device(tmp_path, truth):
    found, outputs = train(tmp_path, "workers", *torchrun(2))

    check(found, truth)
    for rank, output in enumerate(outputs):
        said = f"as worker {rank} of 2 workers, from torchrun (RANK={rank}, WORLD_SIZE=2) (num_rep"
        assert said in output


def test_the_last_rank_is_a_parameter_server(tmp_path, truth):
    found, outputs = train(tmp_path, "servers", *torchrun(3, KERASDIST_NUM_PS="1"))

    check(found, truth)
    for rank, task in enumerate(("chief 0", "worker 0", "ps 0")):
        assert f"as {task} of 1 worker and 1 ps task, from torchrun (RANK={rank}," in outputs[rank]
