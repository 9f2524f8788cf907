"""A small training that goes on from its newest checkpoint: what the files beside it start.

CHECKPOINTS names a folder that all workers share, and EPOCHS says how long to train.
"""

import os

import keras
import numpy as np

import kerasdist

keras.utils.set_random_seed(1)  # So that a restart shuffles the data as before.
with kerasdist.make_strategy().scope():  # Waits for the other workers.
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x = np.random.default_rng(1).random((4096, 8), "float32")
checkpoint = kerasdist.callbacks.Checkpoint(
    os.environ.get("CHECKPOINTS", "runs/train"), every_secs=60
)
epochs = int(os.environ.get("EPOCHS", "20"))
model.fit(x, x.sum(axis=1), batch_size=64, epochs=epochs, verbose=2, callbacks=[checkpoint])
