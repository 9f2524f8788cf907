"""CifarNet on CIFAR-10, as slim's train_cifarnet_on_cifar10.sh.

    python -m models.recipes.cifarnet_cifar10

Reads slim's cifar10_train.tfrecord and cifar10_test.tfrecord in data/, or else has
tensorflow-datasets download CIFAR-10 there (163 MB). The results go to runs/cifarnet_cifar10; a
second start resumes.

Expected time: 0.26 s a step on 2 cores, so 7 hours. Expected test accuracy: 0.86. That is what was
published for TensorFlow's CIFAR-10 trainer, with as many steps and images and a net of the same
kinds of layers, after 4 hours on a K40. For slim's script nothing is published.

On workers, each with the batch of the recipe:

    python -m kerasdist launch --workers 2 -- python -m models.recipes.cifarnet_cifar10

Flags of models.train that are added override those here: --num_clones=2 --batch_size=64.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from .. import train

_DATASET_DIR = Path("data")


def main(argv: Sequence[str] = ()) -> int:
    """Trains and returns the exit code; the flags `argv` override those of the recipe."""
    _DATASET_DIR.mkdir(exist_ok=True)
    return train.main(
        [
            "--train_dir=runs/cifarnet_cifar10",
            "--dataset_name=cifar10",
            f"--dataset_dir={_DATASET_DIR}",
            "--model_name=cifarnet",
            "--batch_size=128",
            "--max_number_of_steps=100000",
            "--save_interval_secs=120",
            "--log_every_n_steps=100",
            "--optimizer=sgd",
            "--learning_rate=0.1",
            "--learning_rate_decay_factor=0.1",
            "--num_epochs_per_decay=200",
            "--weight_decay=0.004",
            *argv,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
