"""A split of a dataset, ready for measuring models."""

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from . import datasets, input_pipeline
from .files.eval_dir import EvalDir
from .pictures import confusion, mistakes
from .preprocessing import Preprocess
from .usage_error import UsageError

NAMES = ("Accuracy", "Recall_5")  # As in slim.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What models are measured on.

    Args:
        dataset: The split.
        values: The flags.
        preprocess: How its images are prepared.
        image_size: Their height and width.
        global_batch_size: Examples of one step of all replicas.
        num_threads: Threads of this process that prepare images.
    """

    dataset: datasets.Dataset
    values: flags.FlagValues
    preprocess: Preprocess
    image_size: int
    global_batch_size: int
    num_threads: int

    @property
    def num_examples(self) -> int:
        """How many examples are measured."""
        number = self.dataset.num_examples
        most = self.values.max_num_batches
        return min(number, most * self.global_batch_size) if most else number

    def batches(self):
        """Returns each example once, in batches of the global size."""
        batches = input_pipeline.test_batches(
            self.dataset,
            preprocess=self.preprocess,
            image_size=self.image_size,
            labels_offset=self.values.labels_offset,
            global_batch_size=self.global_batch_size,
            num_threads=self.num_threads,
            ignore_other_labels=self.values.ignore_other_labels,
        )
        most = self.values.max_num_batches
        return batches.take(most) if most else batches

    def check(self, model: keras.Model) -> None:
        """Raises UsageError if `model` is for other images or classes."""
        num_classes = input_pipeline.num_classes(
            self.dataset, labels_offset=self.values.labels_offset
        )
        channels = self.dataset.channels
        if (model.input_shape[-1], model.output_shape[-1]) != (channels, num_classes):
            raise UsageError(
                f"The model is for channels={model.input_shape[-1]} and "
                f"classes={model.output_shape[-1]}, but --dataset_name "
                f"{self.values.dataset_name!r} has channels={channels} and classes={num_classes}. "
                "--use_grayscale and --labels_offset change the latter."
            )

    def measure(self, model: keras.Model) -> dict[str, float]:
        """Returns Accuracy and Recall_5 of a model.

        Called inside the scope of the model's strategy, by all workers.

        Raises:
            UnreadableDataError: An example cannot be used.
        """
        model.compile(
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            weighted_metrics=[
                keras.metrics.CategoricalAccuracy(name=NAMES[0]),
                keras.metrics.TopKCategoricalAccuracy(5, name=NAMES[1]),
            ],
        )
        with input_pipeline.damage_named(self.values, self.dataset):
            results = model.evaluate(self.batches(), return_dict=True)
        # Without the loss, which holds the weight decay that the model was trained with.
        return {name: results[name] for name in NAMES}

    def write(
        self, eval_dir: EvalDir, model: keras.Model, results: dict[str, float], *, step: int
    ) -> None:
        """Writes results, event files and pictures; the chief reads the examples for them."""
        eval_dir.write(step, results)
        num_classes = model.output_shape[-1]
        counts, worst = np.zeros((num_classes, num_classes), np.int64), mistakes.Worst()
        for images, right, probabilities in self._predicted(model):
            said = np.argmax(probabilities, axis=-1)
            counts += tf.math.confusion_matrix(right, said, num_classes, dtype=tf.int64).numpy()
            worst.look_at(images, right, probabilities)
        names = self.dataset.label_names[self.values.labels_offset :]
        split = f"{self.values.dataset_name}, {self.values.dataset_split_name}"
        title = f"{model.name} at step {step} on {split}: accuracy {results['Accuracy']:.4f}"
        confusion.write_picture(counts, names, eval_dir.confusion, title=title)
        mistakes.write_picture(
            worst.mistakes(), names, eval_dir.mistakes, title=f"{title}\nworst mistakes"
        )

    def _predicted(self, model: keras.Model) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields images, right classes and probabilities of the examples that count."""
        predict = tf.function(lambda images: keras.ops.softmax(model(images, training=False)))
        for images, one_hot, *weights in self.batches():
            right = np.argmax(one_hot, axis=-1)
            counts = np.asarray(weights[0]) > 0 if weights else np.full(len(right), True)
            yield images.numpy()[counts], right[counts], predict(images).numpy()[counts]
