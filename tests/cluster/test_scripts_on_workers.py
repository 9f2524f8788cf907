"""What scripts on several workers do between their calls of `fit`: save, load, wait."""

import contextlib
import functools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.models import save_model

import kerasdist
from tests import fork_server
from tests.strategies import PARAMETER_SERVERS, run_on_workers

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


def regression(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    return model


def save_and_load(strategy, folder) -> dict:
    model = regression(strategy)
    is_chief = kerasdist.is_chief()
    with strategy.scope():
        checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", **BEST)
        model.fit(X, Y, verbose=0, epochs=2, callbacks=[checkpoint])
        model.save_weights(f"{folder}/best.weights.h5")
        model.load_weights(f"{folder}/best.weights.h5")
    if is_chief:
        time.sleep(1.0)  # The others are there before.
    model.save(f"{folder}/model.keras")
    loaded = keras.models.load_model(f"{folder}/model.keras")
    own_folder = folder if is_chief else folder / "of worker 1"
    own_folder.mkdir(exist_ok=True)
    save_model(model, own_folder / "again.keras")
    save_model(model, own_folder / "again.h5")
    keras.saving.save_weights(model, own_folder / "again.weights.h5")
    model.save(own_folder / "again.keras")
    model.export(own_folder / "again", verbose=False)
    keras.models.load_model(own_folder / "again.keras")
    keras.models.load_model(own_folder / "again.h5", compile=False)
    if is_chief:
        model.save(f"{folder}/by the chief alone.keras")
        time.sleep(1.0)
        (folder / "data.txt").write_text("downloaded")
    kerasdist.barrier("download")
    return {
        "is_chief": is_chief,
        "data": (folder / "data.txt").read_text(),
        "files": sorted(path.name for path in own_folder.glob("[abm]*")),
        "loaded": loaded.get_weights(),
        "weights": model.get_weights(),
    }


BEST = {"monitor": "loss", "save_best_only": True, "save_weights_only": True}


def test_what_is_saved_can_be_loaded_in_the_next_line(tmp_path):
    chief, other = run_on_workers(functools.partial(save_and_load, folder=tmp_path), "2 workers")

    assert (chief["is_chief"], other["is_chief"]) == (True, False)
    assert other["data"] == "downloaded"
    again = ["again", "again.h5", "again.keras", "again.weights.h5"]
    others = ["best.weights.h5", "by the chief alone.keras", "model.keras"]
    assert chief["files"] == [*again, *others]
    assert other["files"] == again
    for result in (chief, other):
        for loaded, weight in zip(result["loaded"], result["weights"], strict=True):
            np.testing.assert_array_equal(loaded, weight)


def wait_in_vain(strategy) -> str:
    told = ""
    if kerasdist.is_chief():
        try:
            kerasdist.barrier("the others", timeout_secs=1.0)
        except TimeoutError as error:
            told = str(error)
    else:
        time.sleep(3.0)
    kerasdist.barrier("the others", timeout_secs=60)  # Not in vain: at the same number again.
    return told


def predict_what_is_distributed(strategy) -> str:
    model = regression(strategy)
    dataset = strategy.experimental_distribute_dataset(rows())
    try:
        model.predict(dataset, verbose=0)
    except ValueError as error:
        return str(error)
    return ""


def rows():
    return tf.data.Dataset.from_tensor_slices(X).batch(8)


def save_where_nobody_can(strategy) -> str:
    try:
        regression(strategy).save("/no such folder/model.keras")
    except FileNotFoundError as error:
        return str(error)
    return ""


def complain(strategy) -> tuple[str, str, str]:
    return (
        predict_what_is_distributed(strategy),
        save_where_nobody_can(strategy),
        wait_in_vain(strategy),
    )


def test_what_cannot_be_had_is_named():
    chief, other = run_on_workers(complain, "2 workers")

    assert "Give `predict` the dataset" in chief[0] == other[0]
    assert "No such file" in chief[1]
    assert "the chief failed in `save` for 'model.keras' (call 1, outside `fit`): " in other[1]
    assert "'the others' number 1 for worker 1" in chief[2]


class ChiefEvaluates(keras.callbacks.Callback):
    """Evaluates on the chief alone, as callbacks do that save time where nobody divides data."""

    def on_epoch_end(self, epoch, logs=None):
        if kerasdist.is_chief():
            self.model.evaluate(X, Y, verbose=0)


def evaluate_on_the_chief():
    model = regression(kerasdist.make_strategy())
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[ChiefEvaluates()])


def test_workers_that_do_different_things_are_told():
    for result in fork_server.run_cluster(evaluate_on_the_chief, num_workers=2):
        assert result.exit_code
        assert "RuntimeError: Another worker does something else" in result.output


class Tokens(keras.layers.Layer):
    """Adds an embedding of the position to that of the word."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = keras.layers.Embedding(50, 4), keras.layers.Embedding(4, 4)

    def call(self, inputs):
        return self.words(inputs) + self.positions(keras.ops.arange(4))


def embed(strategy) -> list:
    """Returns the losses of models that `fit` builds."""
    losses = []
    for layer in (keras.layers.Embedding, Tokens):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            embedding = layer(50, 4) if layer is keras.layers.Embedding else layer()
            dense = keras.layers.Dense(1)
            model = keras.Sequential([embedding, keras.layers.Flatten(), dense])
            model.compile("sgd", "mse")
        words = np.arange(40, dtype="int32").reshape(10, 4)
        labels = np.ones((10, 1))
        history = model.fit(words, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    return losses


@pytest.mark.parametrize("workers", PARAMETER_SERVERS)
def test_embeddings_that_fit_builds_on_parameter_servers(workers):
    (losses,) = run_on_workers(embed, workers)

    np.testing.assert_allclose(losses, embed(None), atol=1e-5)


def try_learning_rates(strategy) -> list[float]:
    """Returns the losses of a loop whose body is a script of its own, as in a notebook."""
    losses = []
    for learning_rate in (0.1, 0.01):
        keras.backend.clear_session()
        with kerasdist.make_strategy().scope() if strategy else contextlib.nullcontext():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(learning_rate), "mse")
        losses += model.fit(X, Y, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses


def try_learning_rates_and_others(strategy) -> tuple[list[float], bool, str]:
    losses = try_learning_rates(strategy)
    try:
        kerasdist.make_strategy(step_timeout_secs=60)
    except RuntimeError as error:
        return losses, kerasdist.make_strategy() is strategy, str(error)
    return losses, False, ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", ["2 workers", *PARAMETER_SERVERS])
def test_make_strategy_may_be_called_again_in_a_cluster(workers):
    for losses, is_same, error in run_on_workers(try_learning_rates_and_others, workers):
        np.testing.assert_allclose(losses, try_learning_rates(None), atol=1e-5)
        assert is_same
        assert "with other arguments. Received before: step_timeout_secs=3600, now 60. " in error


def ask_chief(strategy) -> bool:
    kerasdist.barrier()
    return kerasdist.is_chief()


@pytest.mark.parametrize("workers", PARAMETER_SERVERS)
def test_a_chief_of_parameter_servers_waits_for_nobody(workers):
    assert run_on_workers(ask_chief, workers) == [True]
