"""The data of the parity cases, in every form that `fit` takes."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# In batches of 16: 6 full ones, and for ODD one more of 5, which no number of replicas divides.
EVEN, ODD = 96, 101


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Examples from a fixed seed, as arguments of `fit`.

    Attributes:
        num_examples: How many.
        strategy: What trains with them; None for Keras alone.
        batch_size: Examples of a global batch.
    """

    num_examples: int = ODD
    strategy: Any = None
    batch_size: int = 16

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return -(-self.num_examples // self.batch_size)

    def of(self, num_examples: int) -> "Data":
        """Returns the first examples."""
        return dataclasses.replace(self, num_examples=num_examples)

    def examples(self):
        """Returns (x, y): float32 [num_examples, 6] and [num_examples, 1]."""
        return examples(self.num_examples)

    def labels(self) -> np.ndarray:
        """Returns classes 0, 1 and 2: int32 [num_examples]."""
        _, y = self.examples()
        return np.digitize(y[:, 0], [-0.3, 0.3]).astype("int32")

    def words(self) -> np.ndarray:
        """Returns sequences of words of different lengths, padded with 0: int [num_examples, 5]."""
        words = np.random.default_rng(2).integers(1, 20, size=(ODD, 5))
        words[np.arange(5) >= np.random.default_rng(3).integers(1, 6, size=(ODD, 1))] = 0
        return words[: self.num_examples]

    def weights(self, *, with_zeros: bool = False) -> np.ndarray:
        """Returns weights of the examples: float32 [num_examples]."""
        weights = np.random.default_rng(1).uniform(0.1, 3, ODD).astype("float32")
        weights = np.where(np.arange(ODD) % 3 == 0, 0, weights) if with_zeros else weights
        return weights[: self.num_examples]

    def arrays(self, **kwargs: Any) -> dict:
        """Returns the arguments of `fit` for numpy arrays."""
        x, y = self.examples()
        return {"x": x, "y": y, "batch_size": self.batch_size, "epochs": 2} | kwargs

    def dataset(self, **kwargs: Any) -> dict:
        """Returns the arguments of `fit` for a dataset of batches."""
        return {"x": self.batches(), "epochs": 2} | kwargs

    def batches(self) -> tf.data.Dataset:
        """Returns a dataset of batches."""
        return tf.data.Dataset.from_tensor_slices(self.examples()).batch(self.batch_size)

    def batches_of_unknown_number(self) -> tf.data.Dataset:
        """Returns a dataset of batches that TensorFlow cannot count."""
        return self.batches().filter(lambda x, y: True)

    def generator(self):
        """Yields batches."""
        x, y = self.examples()
        for start in range(0, self.num_examples, self.batch_size):
            yield x[start : start + self.batch_size], y[start : start + self.batch_size]

    def endless_generator(self):
        """Yields batches forever."""
        while True:
            yield from self.generator()

    def ragged_batches(self):
        """Yields batches of different sizes: 41 examples."""
        x, y = examples(41)
        start = 0
        for size in (7, 1, 16, 2, 3, 12):
            yield x[start : start + size], y[start : start + size]
            start += size

    def ragged_dataset(self) -> tf.data.Dataset:
        """Returns a dataset of the `ragged_batches`, which TensorFlow cannot count."""
        spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32))
        return tf.data.Dataset.from_generator(self.ragged_batches, output_signature=spec)

    def py_dataset(self) -> keras.utils.PyDataset:
        """Returns Keras' own kind of dataset."""
        return _Batches(list(self.generator()))

    def distributed(self, dataset: tf.data.Dataset | None = None, **kwargs: Any) -> dict:
        """Returns the arguments of `fit` for a dataset that the strategy has distributed."""
        batches = self.batches() if dataset is None else dataset
        return {"x": self.strategy.experimental_distribute_dataset(batches), "epochs": 2} | kwargs

    def distributed_from_function(self) -> dict:
        """As `distributed`, but each replica reads its own batches: 96 examples."""

        def dataset(context: tf.distribute.InputContext):
            number = context.num_replicas_in_sync
            sizes = [len(part) for part in np.array_split(range(self.batch_size), number)]
            whole = tf.data.Dataset.from_tensor_slices(examples(EVEN)).batch(self.batch_size)
            batches = whole.rebatch(sizes)
            # Keras cannot count such data, and would end with it in the second epoch.
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

        distributed = self.strategy.distribute_datasets_from_function(dataset)
        return {"x": distributed, "epochs": 2, "steps_per_epoch": EVEN // self.batch_size}


def examples(num_examples: int = ODD):
    """Returns (x, y): float32 [num_examples, 6] and [num_examples, 1]."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ODD, 6)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(6, 1))).astype("float32")
    return x[:num_examples], y[:num_examples]


class _Batches(keras.utils.PyDataset):
    def __init__(self, batches: list):
        super().__init__()
        self._batches = batches

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, index: int):
        return self._batches[index]
