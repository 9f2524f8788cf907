"""What two processes say of things that they made alike, and of things that differ."""

import functools
import warnings

import keras
import numpy as np
import pytest

from kerasdist.training.context import description
from kerasdist.training.context.description import describe, settings_of


def focal(targets, predictions, gamma=1.0):
    return (targets - predictions) ** gamma


class Own(keras.layers.Layer):
    """A layer with the settings that it is made with."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def get_config(self):
        return {**super().get_config(), **self.settings}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("mse", "mse"),
        (None, "None"),
        (0.1 + 0.2, "0.3"),
        (np.float32(0.1), "0.1"),
        (np.True_, "True"),
        ({"dense_3": "mse", "a": ["mae", None]}, "{a: [mae, None], dense: mse}"),
        ({1: np.float64(0.5), 0: 1}, "{0: 1, 1: 0.5}"),
        (focal, "focal"),
        (lambda y, p: y, "<lambda>"),
        (functools.partial(focal, gamma=2.0), "focal(gamma=2)"),
        (keras.losses.Loss, "Loss"),
        (object(), "object()"),
        (np.ones(3), "ndarray()"),
    ],
)
def test_arguments_are_described_without_addresses(value, text):
    assert describe(value) == text


def test_losses_and_metrics_have_their_settings():
    described = describe(keras.losses.CategoricalCrossentropy(label_smoothing=0.1))

    assert described.startswith("CategoricalCrossentropy(axis=-1, from_logits=False, label_smooth")
    assert "name" not in described
    assert describe(keras.metrics.MeanMetricWrapper(focal)) == "MeanMetricWrapper(fn=focal)"


def test_a_layer_has_its_settings_and_the_objects_among_them():
    layer = keras.layers.Dense(3, "tanh", kernel_regularizer=keras.regularizers.L2(0.5))

    settings = settings_of(layer)

    assert settings["units"] == "3"
    assert settings["activation"] == "tanh"
    assert settings["kernel_regularizer"] == "L2(l2=0.5)"
    assert not {"name", "dtype", "trainable"} & set(settings)


def make_around_a_layer():
    return keras.layers.Bidirectional(keras.layers.GRU(2, dropout=0.5))


def make_around_a_model():
    inputs = keras.Input((3,))
    return keras.layers.TimeDistributed(keras.Model(inputs, keras.layers.Dense(2)(inputs)))


@pytest.mark.parametrize(
    "make",
    [
        keras.layers.RandomFlip,
        keras.layers.AugMix,
        functools.partial(keras.layers.Dropout, 0.5),
        functools.partial(keras.layers.Dense, 2, kernel_initializer="he_normal"),
        make_around_a_layer,
        make_around_a_model,
    ],
)
def test_layers_that_are_made_alike_are_described_alike(make):
    assert settings_of(make()) == settings_of(make())


def test_lambdas_of_other_files_are_alike():
    def made(file):
        function = eval(compile("lambda x: x + 1", file, "eval"))
        return [keras.layers.Lambda(function), keras.layers.Activation(function)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A lambda in an Activation is not safe to load.
        first, second = ([settings_of(each) for each in made(file)] for file in ("a", "b"))

    assert first == second


@pytest.mark.parametrize(
    "settings",
    [
        {"rank": 1},
        {"log_dir": "worker1"},
        {"is_chief": True},
        {"random_seed": 7},
        {"source": "/data/1"},
        {"parts": ["a", "b\\1"]},
        {"token": "6f1ed002ab5595859014ebf0951522d9"},
        {"shown_as": "<Own object at 0x7f16dec85090>"},
        {"started": 1_760_000_000},
        {"options": {"any": 1}},
        {"function": {"value": ("4wEAAAAAAAA\n", None, None)}},
    ],
)
def test_what_may_be_of_one_process_is_left_out(settings):
    assert settings_of(Own(**settings)) == {}


def test_a_name_is_without_the_number_that_keras_gave_it():
    assert settings_of(Own(source="dense_12")) == {"source": "dense"}


@pytest.mark.parametrize("config", [None, NotImplementedError()])
def test_an_object_without_settings_is_its_class(config):
    class Loss:
        def get_config(self):
            if config:
                raise config
            return config

    assert describe(Loss()) == "Loss()"


def test_long_lists_are_told_apart_by_what_is_not_shown():
    words = [f"word{index}" for index in range(1000)]

    texts = [
        description.shortened(settings_of(keras.layers.StringLookup(vocabulary=each))["vocabulary"])
        for each in (words, [*words[:-1], "other"])
    ]

    assert texts[0].startswith("[word0, word1, ")
    assert len(texts[0]) < 250
    assert texts[0] != texts[1]


def test_large_first_values_are_not_turned_into_lists(monkeypatch):
    monkeypatch.setattr(description, "_MOST_VALUES", 5)
    initializer = keras.initializers.Constant(np.ones((3, 2)))
    inner = keras.layers.Embedding(3, 2, embeddings_initializer=initializer)
    monkeypatch.setattr(type(inner), "get_config", lambda self: pytest.fail("It is serialized."))

    assert settings_of(keras.layers.TimeDistributed(inner)) == {}
