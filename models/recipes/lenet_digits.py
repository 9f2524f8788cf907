"""LeNet on scikit-learn's handwritten digits, on two replicas on the CPU.

    python -m models.recipes.lenet_digits

Expected time: about a minute on 2 cores. Expected test accuracy: 0.98. Nothing is
downloaded. The dataset goes to data/, the results to runs/lenet_digits; a second run replaces them.
Flags of models.train that are added override those here: --num_clones=1.
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
            "--train_dir=runs/lenet_digits",
            "--overwrite",
            "--dataset_name=digits",
            f"--dataset_dir={_DATASET_DIR}",
            "--model_name=lenet",
            "--num_clones=2",
            "--clone_on_cpu",
            "--batch_size=32",  # Per clone: 64 in each step.
            "--max_number_of_steps=230",  # 10 epochs of 23 steps.
            "--optimizer=adam",
            "--opt_epsilon=1e-8",
            "--learning_rate=0.001",
            "--learning_rate_decay_type=polynomial",
            "--num_epochs_per_decay=5",  # Of one clone: 10 epochs of both.
            *argv,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
