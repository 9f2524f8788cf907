"""TensorBoard shows a run of ours: asked over its own interface."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from kerasdist.callbacks import Summaries
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [Summaries(folder, every_steps=5)], validation_data=examples(20))
    return folder


@pytest.fixture(scope="module")
def ask(run):
    """A function that returns what TensorBoard answers, from JSON."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", run, "--port", str(port)]
    with subprocess.Popen(
        [*command, "--host=127.0.0.1", "--load_fast=false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:

        def ask(path, **query):
            url = f"http://127.0.0.1:{port}/data/plugin/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)

        try:
            wait_until_loaded(ask)
            yield ask
        finally:
            process.kill()


def wait_until_loaded(ask, secs=90):
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        try:
            if {"train", "validation"} <= ask("scalars/tags").keys():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.3)
    raise TimeoutError("TensorBoard has not loaded the run.")


def test_scalars(ask):
    points = ask("scalars/scalars", run="train", tag="loss (raw)")

    truth = hand_loop.train()
    assert [step for _, step, _ in points] == [5, 10]
    assert [value for *_, value in points] == pytest.approx(
        [truth.losses[4], truth.losses[9]], abs=1e-5
    )
    tags = ask("scalars/tags")
    assert {"learning_rate", "gradient_norm/hidden/kernel", "sparsity/hidden"} <= set(tags["train"])
    assert set(tags["validation"]) == {"epoch_loss"}


def test_histograms(ask):
    found = ask("histograms/histograms", run="train", tag="weights/hidden/kernel")

    assert [step for _, step, _ in found] == [5, 10]
    assert sum(count for *_, count in found[-1][2]) == 6 * 8
    assert "activations/hidden" in ask("histograms/tags")["train"]


def test_the_plan_and_the_graph(ask):
    (plan,) = ask("text/text", run="train", tag="plan")

    assert "2 copies of the model" in plan["text"]
    assert ask("graphs/info")["train"]["run_graph"]
