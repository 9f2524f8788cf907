"""What workers compare before they train, and what is said where they differ."""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.context import agreement, peers
from tests import strategies


@pytest.fixture
def gather(monkeypatch):
    """Return a function that checks the facts of two workers at once; gives what each raised."""
    barrier, rows = threading.Barrier(2, timeout=20), {}

    def sum_over(strategy, numbers):
        rows[peers.index_of(strategy)] = numbers
        barrier.wait()
        total = rows[0] + rows[1]
        barrier.wait()
        return total

    monkeypatch.setattr(peers, "sum_over", sum_over)

    def check(index, facts):
        cluster = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", index))
        try:
            agreement._check(strategies.spanning(cluster), facts)
        except ValueError as error:
            return str(error)
        return ""

    def gathered(first, second):
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(check, (0, 1), (first, second)))

    return gathered


def test_what_is_equal_is_not_spoken_of(gather):
    assert gather({"epochs": "2", "ü": "∞"}, {"ü": "∞", "epochs": "2"}) == ["", ""]


def test_both_sides_are_named_on_all_workers(gather):
    first, second = gather({"epochs": "2", "weight 1": "a"}, {"epochs": "30", "weight 1": "a"})

    assert first == second
    assert "train different things: epochs is 2 on worker 0, 30 on worker 1. Run the" in first
    assert "weight 1" not in first


def test_what_one_of_them_lacks_is_nothing_and_the_first_are_shown(gather):
    first, _ = gather({str(number): "1" for number in range(9)}, {})

    assert "0 is 1 on worker 0, nothing on worker 1; 1 is 1 on" in first
    assert "3 is 1 on worker 0, nothing on worker 1; ...." in first


def test_differences_have_the_order_of_the_facts(gather):
    first, _ = gather({"loss": "mse", "layer 0": "Dense", "axis": "1"}, {})

    assert "loss is mse on worker 0, nothing on worker 1; layer 0 is Dense on" in first


def facts_of(model, **arguments) -> dict[str, str]:
    bound = inspect.signature(model.fit).bind_partial(np.ones(3), **arguments)
    return agreement._facts(model, [], bound)


def test_facts_hold_numbers_and_names_but_nothing_with_an_address():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse", steps_per_execution=3)

    facts = facts_of(model, epochs=4)

    assert facts["epochs"] == "4"
    assert facts["the number of examples in `x`"] == "3"
    assert facts["steps_per_execution"] == "3"
    assert facts["optimizer"] == "SGD"
    assert facts["optimizer's momentum"] == "0.5"
    assert facts["weight 0"] == "float32 (3, 2), not trained"
    assert "x" not in facts
    assert not agreement._is_plain([1, {"a": object()}])


def test_facts_hold_what_the_model_is_compiled_with():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert facts_of(model)["loss"] == "None"

    model.compile("sgd", keras.losses.Huber(), metrics=["mae"], loss_weights=[0.5])

    facts = facts_of(model)
    assert facts["loss"] == "Huber(reduction=sum_over_batch_size)"
    assert facts["loss_weights"] == "[0.5]"
    assert facts["metrics"] == "[mae]"
    assert facts["weighted_metrics"] == "None"


def test_facts_hold_the_arguments_of_fit():
    model = keras.Sequential([keras.layers.Dense(2)])

    facts = facts_of(model, class_weight={0: 1.0, 1: 2.5}, validation_split=0.5, shuffle="batch")

    assert facts["class_weight"] == "{0: 1, 1: 2.5}"
    assert facts["validation_split"] == "0.5"
    assert facts["shuffle"] == "batch"
    assert facts["validation_data"] == facts["sample_weight"] == "not given"
    assert facts_of(model, validation_data=np.ones(3))["validation_data"] == "given"


@pytest.mark.parametrize(
    ("make_x", "expected"),
    [
        (lambda: np.ones([7, 3]), "7"),
        (lambda: {"a": tf.ones([7, 3]), "b": [np.ones(7)]}, "7"),
        (lambda: tf.ragged.constant([[1], [2, 3]]), "2"),
        (lambda: tf.data.Dataset.range(3), "unknown"),
        (lambda: iter([np.ones(3)]), "unknown"),
        (lambda: [np.ones(3), np.ones(4)], "unknown"),
        (lambda: [[1, 2], [3, 4]], "unknown"),
        (lambda: np.float32(1), "unknown"),
        (lambda: None, "unknown"),
    ],
    ids=["array", "dict", "ragged", "dataset", "iterator", "lengths", "lists", "number", "none"],
)
def test_facts_hold_the_number_of_examples_in_arrays(make_x, expected):
    assert agreement._num_examples(make_x()) == expected


def test_facts_hold_the_layers_and_their_settings():
    inner = keras.Sequential([keras.layers.Dropout(0.25)])
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2, "relu")(inner(inputs))

    facts = facts_of(keras.Model(inputs, outputs))

    assert facts["layer 0"] == "Dropout"
    assert facts["rate of layer 0 (Dropout)"] == "0.25"
    assert facts["layer 1"] == "Dense"
    assert facts["activation of layer 1 (Dense)"] == "relu"
    assert "layer 2" not in facts


def test_facts_of_models_that_are_made_and_used_alike_are_equal():
    def make(*, is_called=False):
        with_a_lambda = keras.layers.Activation(lambda x: x)
        model = keras.Sequential([with_a_lambda, keras.layers.RandomFlip(), keras.layers.Dense(1)])
        model.compile("sgd", lambda y, predicted: y, metrics=[keras.metrics.AUC()])
        model.build((None, 4, 4, 1))
        if is_called:  # As `predict` does on the chief alone.
            model(np.ones((1, 4, 4, 1)))
        return model

    assert facts_of(make()) == facts_of(make(is_called=True))


def test_layers_in_a_set_have_no_order_to_compare():
    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drops = {keras.layers.Dropout(0.1), keras.layers.Dropout(0.2)}

    assert agreement._layers(keras.Sequential([Own()])) == {}


@pytest.mark.filterwarnings("error")
def test_no_config_warns():
    model = keras.Sequential([keras.layers.Activation(lambda x: x)])

    assert facts_of(model)["layer 0"] == "Activation"


@pytest.mark.parametrize("error", [NotImplementedError, AttributeError("lr"), KeyError("lr")])
def test_an_optimizer_without_settings_is_compared_by_its_class(error):
    class Own(keras.optimizers.Optimizer):
        def get_config(self):
            raise error

    assert agreement._settings(Own(0.1)) == {"optimizer": "Own"}
    assert agreement._settings(None) == {"optimizer": "NoneType"}
