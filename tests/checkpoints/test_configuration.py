"""What a program has changed is named where its weights fit all the same."""

import json
import re

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint
from kerasdist.checkpoints import configuration
from tests import strategies


class Scale(keras.layers.Layer):
    """Says nothing of its argument."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def get_config(self):
        raise NotImplementedError


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def make(*, activation="relu", rate=0.2, loss: object = "mse", more=(), **adam):
    with strategies.get("one device").scope():
        layers = [
            keras.layers.Dense(3, activation),
            keras.layers.Dropout(rate),
            *[each() for each in more],
        ]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(**{"learning_rate": 0.1} | adam), loss)
    return model


def found(*, then=None, **now):
    saved = json.loads(json.dumps(configuration.of(make(**(then or {})))))
    return configuration.differences(saved, json.loads(json.dumps(configuration.of(make(**now)))))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"activation": "tanh"}, r"layer 'dense_?\d*' activation: 'relu' in the .*, 'tanh' now"),
        ({"rate": 0.5}, r"layer 'dropout_?\d*' rate: 0.2 in the checkpoint, 0.5 now"),
        ({"loss": "mae"}, "loss: 'mse' in the checkpoint, 'mae' now"),
        ({"loss": own_loss}, "loss: 'mse' in the checkpoint, .*now"),
        ({"clipnorm": 1.0}, "optimizer clipnorm: None in the checkpoint, 1.0 now"),
        ({"more": [keras.layers.ReLU]}, r"layer 're_lu_?\d*' \(ReLU\) only now"),
    ],
)
def test_what_differs_is_named(now, words):
    (told,) = found(**now)

    assert re.fullmatch(words, told), told


@pytest.mark.parametrize(
    "kept",
    [
        {"loss": own_loss},
        {"loss": lambda y_true, y_pred: keras.ops.mean(y_pred)},
        {"loss": keras.losses.Huber(0.5)},
        {"more": [lambda: Scale(2.0)]},
        {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
    ],
)
def test_the_same_program_differs_in_nothing(kept):
    assert found(then=kept, **kept) == []


def test_a_learning_rate_is_named_elsewhere():
    assert found(learning_rate=0.7) == []


def test_a_training_that_goes_on_says_what_has_changed(capsys, tmp_path):
    x = np.ones((8, 4), "float32")
    make().fit(x, x[:, :1], verbose=0, callbacks=[Checkpoint(tmp_path)])
    make().fit(x, x[:, :1], verbose=0, epochs=2, callbacks=[Checkpoint(tmp_path)])
    assert "another configuration" not in capsys.readouterr().err

    changed = make(activation="tanh", rate=0.5, loss="mae")
    changed.fit(x, x[:, :1], verbose=0, epochs=3, callbacks=[Checkpoint(tmp_path)])

    told = capsys.readouterr().err
    assert f"another configuration than that of {tmp_path}/step-00000002: layer 'dense" in told
    assert "loss: 'mse' in the checkpoint, 'mae' now" in told
