"""In the manner of Keras' guide to callbacks of one's own: they read the logs and change the run.

One prints every hook, one stops at the least loss and restores the weights, one reads and sets the
learning rate, one saves.
"""

import os

import keras
import numpy as np

from tests.programs.scope import scope


class CustomCallback(keras.callbacks.Callback):
    """Remembers which hook got which keys, as the guide prints them."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def line(self, hook, logs):
        # `list(logs.keys())` fails on None, as the guide's would.
        self.lines.append([hook, isinstance(logs, dict), list(logs.keys())])

    def on_train_begin(self, logs=None):
        self.line("on_train_begin", logs)

    def on_train_end(self, logs=None):
        self.line("on_train_end", logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.line(f"on_epoch_begin {epoch}", logs)

    def on_epoch_end(self, epoch, logs=None):
        self.line(f"on_epoch_end {epoch}", logs)

    def on_test_begin(self, logs=None):
        self.line("on_test_begin", logs)

    def on_test_end(self, logs=None):
        self.line("on_test_end", logs)

    def on_predict_begin(self, logs=None):
        self.line("on_predict_begin", logs)

    def on_predict_end(self, logs=None):
        self.line("on_predict_end", logs)

    def on_train_batch_begin(self, batch, logs=None):
        self.line(f"on_train_batch_begin {batch}", logs)

    def on_train_batch_end(self, batch, logs=None):
        self.line(f"on_train_batch_end {batch}", logs)

    def on_test_batch_begin(self, batch, logs=None):
        self.line(f"on_test_batch_begin {batch}", logs)

    def on_test_batch_end(self, batch, logs=None):
        self.line(f"on_test_batch_end {batch}", logs)

    def on_predict_batch_begin(self, batch, logs=None):
        self.line(f"on_predict_batch_begin {batch}", logs)

    def on_predict_batch_end(self, batch, logs=None):
        self.line(f"on_predict_batch_end {batch}", logs)


class LossAndErrorPrintingCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.lines, self.losses = [], []

    def on_train_batch_end(self, batch, logs):
        self.losses.append(logs["loss"])
        self.lines.append(
            "Up to batch {}, the average loss is {:7.2f}.".format(batch, logs["loss"])
        )

    def on_epoch_end(self, epoch, logs):
        self.lines.append(f"The average loss for epoch {epoch} is {logs['loss']:7.2f}")


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    def __init__(self, patience=0):
        super().__init__()
        self.patience = patience
        self.best_weights = None

    def on_train_begin(self, logs=None):
        self.wait = 0
        self.stopped_epoch = 0
        self.best = np.inf

    def on_epoch_end(self, epoch, logs):
        current = logs.get("loss")
        if np.less(current, self.best):
            self.best = current
            self.wait = 0
            self.best_weights = self.model.get_weights()
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch = epoch
                self.model.stop_training = True
                self.model.set_weights(self.best_weights)


class CustomLearningRateScheduler(keras.callbacks.Callback):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        if not hasattr(self.model.optimizer, "learning_rate"):
            raise ValueError('Optimizer must have a "learning_rate" attribute.')
        lr = float(self.model.optimizer.learning_rate)
        self.rates.append([lr, int(self.model.optimizer.iterations)])
        self.model.optimizer.learning_rate = self.schedule(epoch, lr)


class SaveEveryEpoch(keras.callbacks.Callback):
    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(os.path.join(self.directory, f"epoch-{epoch}.keras"))


def get_model():
    model = keras.Sequential()
    model.add(keras.layers.Dense(1))
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=0.1),
        loss="mean_squared_error",
        metrics=["mean_absolute_error"],
    )
    return model


def run(strategy, *, directory):
    keras.utils.set_random_seed(5)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(37, 12)).astype("float32")
    y = x.sum(axis=1)
    with scope(strategy):
        model = get_model()
    hooks, losses, stop = CustomCallback(), LossAndErrorPrintingCallback(), EarlyStoppingAtMinLoss()
    rates = CustomLearningRateScheduler(lambda epoch, lr: lr * (0.9 if epoch < 3 else 8))
    save = SaveEveryEpoch(directory)
    history = model.fit(
        x,
        y,
        batch_size=8,
        epochs=12,
        validation_split=0.3,
        callbacks=[hooks, losses, stop, rates, save],
    )
    scores = model.evaluate(x, y, batch_size=16, verbose=0, callbacks=[hooks])
    predictions = model.predict(x, batch_size=16, callbacks=[hooks])
    return {
        "history": history.history,
        "epoch": history.epoch,
        "params": history.params,
        "hooks": hooks.lines,
        "losses": losses.losses,
        "lines": losses.lines,
        "rates": rates.rates,
        "stopped": [stop.stopped_epoch, stop.best],
        "files": sorted(os.listdir(directory)),
        "scores": scores,
        "predictions": predictions,
        "weights": model.get_weights(),
    }
