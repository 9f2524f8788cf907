"""The truth of workers that make updates together sees their batches, joined."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.joined_batches import joined, joined_batches

X = np.arange(1, 12, dtype="float32")[:, None]


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (X[4 * index : 4 * index + 4],)


class Recorder(keras.Model):
    """Tells the examples of each step, as one number: the sum of powers of two."""

    def train_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        self.optimizer.iterations.assign_add(1)
        return {"examples": tf.reduce_sum(2**x)}

    def test_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        return {"examples": tf.reduce_sum(2**x)}

    def call(self, x):
        return x


def examples(*numbers):
    return sum(2.0**number for number in numbers)


def steps(x, **arguments):
    """Returns what each step of `fit` saw, and the last one of its validation."""
    model = Recorder()
    model.compile("sgd")
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["examples"])
    )
    with joined_batches(2):
        history = model.fit(x, verbose=0, callbacks=[note], **arguments)
    return seen, history.history


def dataset():
    return tf.data.Dataset.from_tensor_slices((X,)).batch(4)


def generator():
    yield from dataset().as_numpy_iterator()


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        (lambda: X, {"batch_size": 4}),
        (dataset, {}),
        (lambda: dataset().unbatch().batch(4), {}),
        (generator, {}),
        (Batches, {}),
    ],
    ids=["arrays", "dataset", "of unknown length", "generator", "PyDataset"],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored")
def test_steps_have_two_batches_each_and_the_last_what_is_left(data, arguments):
    seen, _ = steps(data(), shuffle=False, **arguments)

    assert seen == [examples(*range(1, 9)), examples(9, 10, 11)]


def test_data_without_end_is_joined_across_its_passes():
    seen, _ = steps(dataset().repeat(), steps_per_epoch=3, shuffle=False)

    assert seen == [
        examples(*range(1, 9)),
        examples(9, 10, 11, 1, 2, 3, 4),
        examples(*range(5, 12)),
    ]


def test_validation_has_the_batches_of_the_program():
    _, history = steps(X, batch_size=4, validation_data=(X[:8],))

    assert history["val_examples"] == [examples(5, 6, 7, 8)]


def test_batches_of_one_size_that_is_known_are_joined():
    batches = tf.data.Dataset.from_tensor_slices({"x": X}).batch(5, drop_remainder=True)

    (batch,) = joined(batches, 2)

    np.testing.assert_array_equal(batch["x"], X[:10])
