"""What `fit` reads, counts and saves has the names that it had, and does what it did."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import keras_fit
from kerasdist.private.keras_fit import QuietCheckpoint


@pytest.mark.parametrize(
    "name",
    [
        *["_get_iterator", "_interrupted_warning", "_enumerate_iterator"],
        *["_epoch_iterator", "_current_iterator", "_num_batches", "_steps_seen"],
    ],
)
def test_keras_has_the_names_that_are_used(name):
    assert f"self.{name}" in inspect.getsource(keras_fit.epoch_iterator.EpochIterator)


class OwnIterator(keras_fit.EpochIterator):
    """Reads numbers, and notes what Keras has asked of it."""

    def __init__(self):
        super().__init__(np.zeros((3, 1)), batch_size=1, steps_per_epoch=2)
        self.asked = []

    def make_iterator(self):
        self.asked.append("make_iterator")
        return iter("abc")

    def calls(self):
        self.asked.append("calls")
        return super().calls()

    def __next__(self):
        return self.next_call()

    def warn_of_end(self):
        self.asked.append(f"warn_of_end after {self.num_seen} of {self.num_batches_of_data}")


def test_keras_asks_by_the_public_names():
    steps = OwnIterator()

    for iterator in (iterator for *_, iterator in steps):
        assert iterator is steps.iterator
    assert (steps.asked, steps.num_seen) == (["calls", "make_iterator"], 2)

    steps.num_seen = 3  # One more than there are after the next.
    assert list(steps) == []
    assert steps.asked[2:] == ["calls", "warn_of_end after 3 of 3", "make_iterator"]


@pytest.mark.parametrize("name", keras_fit.STEPS_OF_MODEL_CHECKPOINT)
def test_model_checkpoint_has_the_names_that_are_used(name):
    assert hasattr(keras.callbacks.ModelCheckpoint("model.keras"), name)


def test_class_weight_function_looks_up_the_class():
    weigh = keras_fit.class_weight_function({0: 0.5, 1: 2.0})

    _, _, weights = weigh(tf.zeros([2, 1]), tf.constant([1, 0]))

    assert weights.numpy().tolist() == [2.0, 0.5]


def test_the_map_of_class_weights_is_told_from_others():
    data = tf.data.Dataset.from_tensor_slices((tf.zeros([4, 1]), [0, 1, 0, 1])).batch(2)
    adapter = keras_fit.tf_dataset_adapter.TFDatasetAdapter(data, class_weight={1: 2.0})
    (weighed,) = adapter.get_tf_dataset()._inputs()

    assert keras_fit.weighs_classes(weighed)
    assert not keras_fit.weighs_classes(data.map(lambda x, y: (x, y)))


def _compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_model_keeps_its_optimizer_when_it_is_saved_to_h5(tmp_path):
    model = _compiled()

    with keras_fit.compile_config_kept(model):
        model.save(tmp_path / "model.h5")

    assert "optimizer" in model.get_compile_config()


class Model:
    """What a ModelCheckpoint asks of a model, with a `save` that only notes its calls."""

    metrics = ()

    def __init__(self):
        self.saved = []

    def save(self, path, overwrite):
        self.saved.append(path)


def run(kind, folder, *, save_freq: str | int) -> tuple:
    checkpoint = kind(
        folder / "{epoch}.keras", "score", 1, save_best_only=True, mode="min", save_freq=save_freq
    )
    model = Model()
    checkpoint.set_model(model)
    for epoch, score in enumerate([3.0, 4.0, 2.0]):
        checkpoint.on_epoch_begin(epoch)
        checkpoint.on_train_batch_end(0, {"score": score})
        checkpoint.on_epoch_end(epoch, {"score": score})
    return [path.split("/")[-1] for path in model.saved], checkpoint.best, checkpoint.filepath


def test_it_saves_and_knows_the_best_as_keras_own_and_makes_no_folder(tmp_path, capsys):
    ours = run(QuietCheckpoint, tmp_path / "new", save_freq="epoch")
    assert not list(tmp_path.iterdir())
    assert not capsys.readouterr().out

    assert ours == run(keras.callbacks.ModelCheckpoint, tmp_path / "new", save_freq="epoch")
    assert ours[:2] == (["1.keras", "3.keras"], 2.0)


@pytest.mark.parametrize("kind", [QuietCheckpoint, keras.callbacks.ModelCheckpoint])
def test_between_two_steps_it_saves_nothing(tmp_path, kind):
    saved, _, _ = run(kind, tmp_path, save_freq=1)

    assert bool(saved) == (kind is not QuietCheckpoint)
