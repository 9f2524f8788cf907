"""scikit-learn's handwritten digits as a tensorflow-datasets dataset: real images, no download.

1,797 gray images of 8 x 8 pixels, part of scikit-learn's installation. To suit nets for 28 x 28
images, each pixel becomes a square of 3 x 3 and a black border of 2 pixels is added; the 17 gray
values become 0 to 255. A fifth of the images, the same share of each digit, is kept for testing.
"""

from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds


class Digits(tfds.core.GeneratorBasedBuilder):
    """Images of the digits 0 to 9; `download_and_prepare` writes them once, as TFRecord."""

    VERSION = tfds.core.Version("1.0.0")
    SPLIT_SIZES: ClassVar = {"train": 1437, "test": 360}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-learn.org/stable/datasets/toy_dataset.html",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager):
        # Imported here because only the first run, which writes the files, needs it.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        train, test = train_test_split(
            np.arange(len(digits.target)),
            test_size=self.SPLIT_SIZES["test"],
            stratify=digits.target,
            random_state=0,
        )
        images = _enlarge(digits.images)
        return {
            "train": self._generate_examples(train, images, digits.target),
            "test": self._generate_examples(test, images, digits.target),
        }

    def _generate_examples(self, indices: np.ndarray, images: np.ndarray, labels: np.ndarray):
        for index in indices.tolist():
            yield index, {"image": images[index], "label": int(labels[index])}


def _enlarge(images: np.ndarray) -> np.ndarray:
    """Turns float [n, 8, 8] of 0 to 16 into uint8 [n, 28, 28, 1] of 0 to 255."""
    gray = (images.astype(np.int64) * 255 // 16).astype(np.uint8)
    enlarged = gray.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))[..., np.newaxis]
