"""VGG-16 with a new head, on five kinds of flowers, from slim's weights for ImageNet.

    python -m models.recipes.vgg_16_fine_tuning --checkpoint_path=vgg_16.ckpt --dataset_dir=DIR

vgg_16.ckpt is slim's checkpoint. DIR holds flowers_train_00000-of-00005.tfrecord and the other
files that slim wrote; with --dataset_name=folder it holds your own images, DIR/<class>/<image>. The
results go to runs/vgg_16_flowers; a second start resumes.

The convolutions begin with the weights of the checkpoint, fc6 to fc8 with new ones; the gradients
of these are multiplied by ten. Flags of models.train that are added override those here.

Expected time: 20 s a step on 2 cores, so 11 hours. Expected accuracy: about 0.9. Nothing is
published for VGG-16; Inception v3 reached 93.4 % of the validation images after 2,000 steps at a
learning rate of 0.001.
"""

import sys
from collections.abc import Sequence

from .. import train

_HEAD = ("fc6", "fc7", "fc8")


def main(argv: Sequence[str] = ()) -> int:
    """Trains and returns the exit code; the flags `argv` override those of the recipe."""
    return train.main(
        [
            "--train_dir=runs/vgg_16_flowers",
            "--dataset_name=flowers",
            "--model_name=vgg_16",
            f"--checkpoint_exclude_scopes={','.join(_HEAD)}",
            f"--gradient_multipliers={','.join(f'{layer}=10' for layer in _HEAD)}",
            "--batch_size=32",
            "--max_number_of_steps=2000",
            "--optimizer=momentum",
            "--learning_rate=0.0001",
            "--learning_rate_decay_type=fixed",
            "--weight_decay=0.0005",
            *argv,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
