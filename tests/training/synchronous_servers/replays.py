"""Trainings on synchronous workers that note which batches went into each update.

One device that is given the same batches, those of an update joined, has the same weights.
"""

import os
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

BATCH, NUM_BATCHES = 2, 30
X = np.random.default_rng(0).normal(size=(BATCH * NUM_BATCHES - 1, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


def make_strategy(folder, *, num_to_aggregate, num_workers, num_ps=1):
    """Returns the strategy of a task, and lets others `lose` it."""
    task = kerasdist.Cluster.from_env().task
    Path(folder, str(task)).write_text(str(os.getpid()))
    return kerasdist.make_strategy(
        kerasdist.DeploymentConfig(
            num_replicas=num_workers,
            num_ps_tasks=num_ps,
            sync_replicas=True,
            replicas_to_aggregate=num_to_aggregate,
        ),
        heartbeat_timeout_secs=5,
    )


def lose(folder, task, number=signal.SIGKILL):
    """Kills a task, or halts it."""
    os.kill(int(Path(folder, task).read_text()), number)


class Updates(keras.callbacks.Callback):
    """Notes the positions of the batches of each update, by epoch, and acts after one of them."""

    def __init__(self, *, act_after=0, act=lambda: None):
        super().__init__()
        self.positions, self.workers = [], []
        self.act_after, self.act = act_after, act

    def on_epoch_begin(self, epoch, logs=None):
        self.positions.append([])

    def on_train_batch_end(self, batch, logs=None):
        made = self.model.train_function.updates_made
        self.positions[-1] += made.positions
        self.workers += made.workers
        self.act_after -= 1
        if self.act_after == 0:
            self.act()


def make_model():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def known():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def of_unknown_length():
    return known().filter(lambda x, y: True)


def with_an_error():
    def check(x, y):
        is_right = tf.debugging.assert_less(x, 100.0, "too large")
        with tf.control_dependencies([is_right]):
            return tf.identity(x), y

    x = X.copy()
    x[len(x) // 2] = 100
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH).map(check)


class ReadByTheChief(keras.utils.PyDataset):
    def __len__(self):
        return NUM_BATCHES

    def __getitem__(self, index):
        examples = slice(index * BATCH, (index + 1) * BATCH)
        return X[examples], Y[examples]


DATA = {"known": known, "unknown length": of_unknown_length, "by the chief": ReadByTheChief}


def trained(strategy, data, **acts):
    """Trains for two epochs; returns what a `check` needs."""
    with strategy.scope():
        model = make_model()
    updates = Updates(**acts)
    history = model.fit(
        DATA[data](), epochs=2, shuffle=False, verbose=0, callbacks=[updates]
    ).history
    return {
        "weights": model.get_weights(),
        "positions": updates.positions,
        "mae": history["mae"],
        "num_updates": int(model.optimizer.iterations),
    }


def check(found, num_to_aggregate):
    """Checks that an epoch has each batch once, and that one device has these weights."""
    model, batches = make_model(), list(known().as_numpy_iterator())
    for epoch in found["positions"]:
        assert sorted(position for update in epoch for position in update) == list(
            range(NUM_BATCHES)
        )
        assert {len(update) for update in epoch[:-1]} == {num_to_aggregate}
        joined = (
            tuple(map(np.concatenate, zip(*(batches[each] for each in update), strict=True)))
            for update in epoch
        )
        logs = model.fit(joined, steps_per_epoch=len(epoch), shuffle=False, verbose=0).history
    assert found["num_updates"] == sum(map(len, found["positions"]))
    np.testing.assert_allclose(found["mae"][-1:], logs["mae"], rtol=1e-5)
    for ours, theirs in zip(found["weights"], model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
