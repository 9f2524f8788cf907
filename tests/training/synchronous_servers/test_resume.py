"""A training on synchronous workers of parameter servers that is interrupted goes on exactly."""

import functools
import json
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.callbacks import Checkpoint
from tests import fork_server, strategies

NUM_EXAMPLES = 26
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))
_SIZE = 4  # 7 batches, of which two workers make 4 updates.


class Interrupted(Exception):
    """A program is killed."""


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` after some updates."""

    def __init__(self, num_updates):
        super().__init__()
        self.left = num_updates

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


def examples():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled(size):
    return {"x": examples().shuffle(NUM_EXAMPLES).batch(size), "epochs": 3}


def over_short_epochs(size):
    return {**shuffled(size), "epochs": 5, "steps_per_epoch": 3}


def of_unknown_length(size):
    data = examples().shuffle(NUM_EXAMPLES).filter(lambda x, y: x[0] > -1)
    return {"x": data.batch(size), "epochs": 5, "steps_per_epoch": 2}


def without_end(size):
    return {"x": examples().repeat().batch(size), "epochs": 4, "steps_per_epoch": 3}


def batches(arrays, size):
    """Yields batches in Python, some times from the first to the last."""
    num_whole = NUM_EXAMPLES // size * size
    for _ in range(9):
        for start in range(0, num_whole, size):
            yield tuple(array[start : start + size] for array in arrays)


def of_python(size):
    return {"x": batches([X, Y], size), "epochs": 3, "steps_per_epoch": 4}


def in_order(size):
    return {"x": examples().batch(size), "epochs": 3}


# After updates in the middle of the second epoch, or of the third, which begins the data anew; and
# Keras' own callback, which goes on where an epoch begins, and keeps no history.
CASES = {
    "shuffled": (shuffled, 6, Checkpoint),
    "over short epochs": (over_short_epochs, 8, Checkpoint),
    "unknown length": (of_unknown_length, 7, Checkpoint),
    "without end": (without_end, 5, Checkpoint),
    "Python": (of_python, 6, Checkpoint),
    "BackupAndRestore": (in_order, 6, keras.callbacks.BackupAndRestore),
}


def train(strategy, make_data, size, *callbacks):
    """Returns the weights and the logs of a new model."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh")])
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    given = {**make_data(size), "callbacks": list(callbacks)}
    history = model.fit(**given, shuffle=False, verbose=0).history
    return [model.get_weights(), history]


def interrupted_and_resumed(name, folder, strategy):
    """Returns what a training gives that was interrupted, and goes on."""
    make_data, num_updates, make_callback = CASES[name]
    options = {"every_steps": 1} if make_callback is Checkpoint else {}
    make = functools.partial(make_callback, folder / name, **options)
    try:
        with pytest.raises(Interrupted):
            train(strategy, make_data, _SIZE, make(), Interrupt(num_updates))
        callback = make()
        found = train(strategy, make_data, _SIZE, callback)
        assert not isinstance(callback, Checkpoint) or callback.resumed_from
        return found
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


def all_outcomes(folder, strategy):
    return {name: interrupted_and_resumed(name, folder, strategy) for name in CASES}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What all cases give in one cluster."""
    (workers,) = strategies.SYNCHRONOUS
    program = functools.partial(all_outcomes, tmp_path_factory.mktemp("runs"))
    (outcomes,) = strategies.run_on_workers(program, workers)
    return outcomes


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.timeout(300)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_as_one_device_that_nobody_interrupts(name, outcomes):
    make_data, _, make_callback = CASES[name]
    assert not isinstance(outcomes[name], str), outcomes[name]
    weights, history = outcomes[name]

    expected, logs = train(strategies.get("one device"), make_data, 2 * _SIZE)

    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    if make_callback is Checkpoint:
        for key, values in logs.items():
            np.testing.assert_allclose(history[key], values, rtol=1e-5, err_msg=key)


def of_dataset(*arrays):
    return {"x": tf.data.Dataset.from_tensor_slices(arrays).shuffle(9).batch(2)}


def of_generator(*arrays):
    return {"x": batches(arrays, 2), "steps_per_epoch": NUM_EXAMPLES // 2}


def times_trained(strategy, make_data, *callbacks):
    """Returns how often each example was trained in three epochs.

    Each has a weight of its own, which goes down by 1 each time.
    """
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((1,), dtype="int64"),
                keras.layers.Embedding(NUM_EXAMPLES, 1, embeddings_initializer="zeros"),
                keras.layers.Flatten(),
            ]
        )
        model.compile(keras.optimizers.SGD(2.0), "mae")  # The mean of two examples.
    data = make_data(np.arange(NUM_EXAMPLES)[:, None], np.full([NUM_EXAMPLES, 1], -100.0))
    model.fit(**data, epochs=3, shuffle=False, verbose=0, callbacks=list(callbacks))
    return -model.get_weights()[0][:, 0]


def with_a_backup_worker(folder):
    """Returns `times_trained` of trainings that are interrupted and go on, by kinds of data."""
    strategy, found = kerasdist.make_strategy(), {}
    for make_data in (of_dataset, of_generator):
        own = folder / make_data.__name__
        with pytest.raises(Interrupted):
            times_trained(strategy, make_data, Checkpoint(own, every_steps=1), Interrupt(17))
        record = json.loads((max(own.glob("step-*")) / "checkpoint.json").read_text())
        assert record["given"], record
        checkpoint = Checkpoint(own, every_steps=1)
        found[make_data.__name__] = times_trained(strategy, make_data, checkpoint)
    return found


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_what_late_workers_had_is_trained_once(tmp_path):
    program = functools.partial(with_a_backup_worker, tmp_path)
    cluster = {"num_workers": 2, "num_ps": 1, "num_backup_workers": 1}
    chief, *_ = fork_server.run_cluster(program, timeout_secs=240, **cluster)

    assert chief.exit_code == 0, chief.output[-4000:]
    for name, times in chief.value.items():
        np.testing.assert_allclose(times, np.full(NUM_EXAMPLES, 3), err_msg=name)
