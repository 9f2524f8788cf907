"""TensorBoard shows a run of ours: asked over its own interface."""

import pytest

from kerasdist.callbacks import Summaries
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.tensorboard_server import served, wait_until

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
    with served(run) as ask:
        wait_until(lambda: {"train", "validation"} <= ask("scalars/tags").keys())
        yield ask


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
