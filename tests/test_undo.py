"""What `kerasdist.undo` gives back: all of it, and the models of others train as ever."""

import functools
import re
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasdist
from tests import attributes, fork_server

PAGE = Path(__file__).parents[1] / "docs/trust.md"

pytestmark = pytest.mark.processes


def test_undo_gives_back_every_function_on_replicas():
    replaced, left, plain = fork_server.call(functools.partial(train_and_undo, on_replicas))

    assert replaced == listed("by every strategy")
    assert left == set()
    assert np.array_equal(plain, fork_server.call(train_plain_model))


def test_undo_gives_back_every_function_in_a_chief_of_parameter_servers():
    chief, *_ = fork_server.run_cluster(
        functools.partial(train_and_undo, kerasdist.make_strategy), num_workers=1, num_ps=1
    )

    replaced, left, plain = chief.value
    assert replaced == listed("by every strategy") | listed("by parameter servers, too")
    assert left == set()
    assert np.array_equal(plain, fork_server.call(train_plain_model))


def train_and_undo(make_strategy):
    """Returns what was replaced, what still is after `undo`, and weights of a plain model then.

    And checks what a model of a strategy does meanwhile.
    """
    sys.modules["tf_keras"] = legacy_keras = types.ModuleType("tf_keras")
    methods = {"compile": lambda model: None, "fit": lambda model: None, "__module__": "tf_keras"}
    legacy_keras.Model = type("Model", (), methods)  # ty: ignore[missing-attribute]
    before = attributes.of_keras_and_tensorflow()

    strategy = make_strategy()
    with strategy.scope():
        model = make_model()
    weights = trained(model)
    model.evaluate(*data(), verbose=0)
    model.predict(data()[0], verbose=0)
    replaced = attributes.changed_since(before)
    kerasdist.undo()
    left = attributes.changed_since(before)
    kerasdist.undo()  # There is nothing any more.

    plain = train_plain_model()
    for train in (model.fit, model.evaluate, lambda x, y, verbose: model.predict(x, verbose=0)):
        with pytest.raises(RuntimeError, match=r"kerasdist\.undo.*Call `kerasdist.make_strategy`"):
            train(*data(), verbose=0)
    with strategy.scope(), pytest.raises(RuntimeError, match=r"kerasdist\.undo"):
        make_model()
    assert make_strategy() is strategy
    assert not np.array_equal(trained(model), weights)  # It goes on.
    return replaced, left, plain


def on_replicas():
    config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
    return kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())


def train_plain_model():
    return trained(make_model())


def make_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def data():
    x = np.arange(24, dtype="float32").reshape(8, 3) / 24
    return x, x.sum(axis=1)


def trained(model):
    model.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def listed(title: str) -> set[str]:
    """Returns the functions that a table of the page has: `Model.save`."""
    table = PAGE.read_text().partition(f"{title}\n")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
