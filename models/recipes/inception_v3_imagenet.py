"""Inception v3 on ImageNet, as the distributed Inception trainer had it.

    python -m models.recipes.inception_v3_imagenet --dataset_dir=DIR

DIR holds slim's TFRecords, train-00000-of-01024 to validation-00127-of-00128, with 1,001 classes.
The results go to runs/inception_v3; a second start resumes. On several GPUs, or on workers, which
read --batch_size images each:

    python -m models.recipes.inception_v3_imagenet --dataset_dir=DIR --num_clones=8
    python -m kerasdist launch --workers 2 -- python -m models.recipes.inception_v3_imagenet \
        --dataset_dir=DIR

As published, with backup workers: each step is the mean of the first gradients, here of two of
three, and nobody waits for the slowest worker. "Revisiting Distributed Synchronous SGD" has 4
backups of 100 workers; the learning rate is one for steps of 25 to 100 gradients:

    python -m kerasdist launch --workers 3 --ps 1 --backup 1 -- \
        python -m models.recipes.inception_v3_imagenet --dataset_dir=DIR

RMSProp with decay 0.9, momentum 0.9 and epsilon 1.0; the learning rate 0.045 falls by 0.94 every
two epochs, in stairs; moving averages with decay 0.9999; labels smoothed by 0.1; the second
classifier has the weight 0.4; images are cropped around their bounding boxes, resized in four ways,
and distorted in brightness, saturation, hue and contrast.

Expected time and accuracy are the published ones: 73.5 % of the validation images after 100 hours
on eight K40 with 256 images a step, and 78 % in less than 65 hours on 100 GPUs, 56 times the speed
of one. A step of 32 images takes 5.5 s on 2 cores, and all of them 64 days: too long for a laptop.

Without parameter servers all workers count. Flags of models.train that are added override those
here, such as --num_replicas_to_aggregate, which that trainer had.
"""

import sys
from collections.abc import Sequence

from .. import train


def main(argv: Sequence[str] = ()) -> int:
    """Trains and returns the exit code; the flags `argv` override those of the recipe."""
    return train.main(
        [
            "--train_dir=runs/inception_v3",
            "--dataset_name=imagenet",
            "--model_name=inception_v3",
            "--preprocessing_name=inception_full",
            "--batch_size=32",
            "--max_number_of_steps=1000000",
            "--save_interval_secs=600",
            "--save_summaries_secs=180",
            "--optimizer=rmsprop",
            "--rmsprop_decay=0.9",
            "--rmsprop_momentum=0.9",
            "--opt_epsilon=1.0",
            "--learning_rate=0.045",
            "--learning_rate_decay_type=exponential",
            "--learning_rate_decay_factor=0.94",
            "--num_epochs_per_decay=2",
            "--weight_decay=0.00004",
            "--label_smoothing=0.1",
            "--moving_average_decay=0.9999",
            *argv,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
