"""What is said of a training that goes on."""

import sys

import pytest

from kerasdist.checkpoints.found_checkpoint import FoundCheckpoint, Training
from kerasdist.checkpoints.saved import Saved


@pytest.mark.parametrize(
    ("epochs", "told"), [(9, "epoch 5 of 9, after"), (sys.maxsize // 45, "epoch 5, after")]
)
def test_the_last_epoch_is_named_unless_it_is_only_a_way_to_say_endless(epochs, told):
    training = Training(
        **{"fit": 0, "epochs": epochs, "batch_size": 32, "steps_per_epoch": 45},
        **{"num_batches": None, "variables": [], "other_optimizers": []},
    )
    saved = Saved(path="run/step-00000181", record={"epoch": 4, "step": 1}, arrays={})

    said = FoundCheckpoint(saved, training).describe_resume()

    assert f"step 181, {told} 1 of its steps." in said
