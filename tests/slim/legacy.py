"""TF-Slim and slim's image models as they are, on a TensorFlow that has moved what they import.

`make test-slim` has an environment with them; elsewhere the tests are skipped.

    slim = legacy.load("tf_slim")
    with legacy.session() as session:
        images = session.run(slim.conv2d(...))
"""

import contextlib
import functools
import importlib
import inspect
import os
import sys
import types
import warnings
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

# Where TensorFlow 1 had names that TF-Slim uses, and where they are.
_MOVED = {
    "framework.ops.IndexedSlices": "framework.indexed_slices",
    "framework.ops.Tensor": "framework.tensor",
    "ops.array_ops.stack": "ops.array_ops_stack",
    "ops.control_flow_ops.case": "ops.control_flow_case",
    "ops.control_flow_ops.cond": "ops.cond",
}

# With the variable, which `make test-slim` sets, a package that is missing is an error.
needs_slim = pytest.mark.skipif(
    os.environ.get("TF_USE_LEGACY_KERAS") != "1",
    reason="object_detection, tf_keras, tf_slim and TF_USE_LEGACY_KERAS=1: see `make test-slim`",
)


@functools.cache
def load(name: str) -> Any:
    """Returns a module: "tf_slim", or one of slim's image models, such as "nets.nets_factory"."""
    _prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@contextlib.contextmanager
def session() -> Generator[Any]:
    """Yields a session of a new graph, in which TensorFlow warns of nothing that is deprecated."""
    with warnings.catch_warnings(), tf.Graph().as_default(), tf.compat.v1.Session() as found:
        warnings.simplefilter("ignore")
        tf.compat.v1.set_random_seed(0)
        yield found


def never_dropping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets dropout of slim return what it is given; it would draw other numbers than Keras'."""
    slim = load("tf_slim")
    monkeypatch.setattr(slim, "dropout", slim.add_arg_scope(lambda inputs, *others, **more: inputs))


def with_default(monkeypatch: pytest.MonkeyPatch, layer: str, **values: Any) -> None:
    """Gives arguments of a layer of slim other defaults, also where its scopes are exchanged."""
    function = inspect.unwrap(getattr(load("tf_slim"), layer))
    parameters = inspect.signature(function).parameters.values()
    defaults = (
        values.get(each.name, each.default)
        for each in parameters
        if each.default is not inspect.Parameter.empty
    )
    monkeypatch.setattr(function, "__defaults__", tuple(defaults))


@functools.cache
def _prepare() -> None:
    for old, new in _MOVED.items():
        module, _, name = f"tensorflow.python.{old}".rpartition(".")
        moved = getattr(importlib.import_module(f"tensorflow.python.{new}"), name)
        setattr(importlib.import_module(module), name, moved)
    numpy: Any = np
    numpy.int = int  # As before NumPy 1.24.
    layers = importlib.import_module("tf_keras.src.legacy_tf_layers")
    sys.modules["tf_keras.legacy_tf_layers"] = layers  # Where TensorFlow looks for it.
    # NASNet and PNASNet, which are not built here, import a part of it.
    contrib: Any = types.ModuleType("tensorflow.contrib")
    contrib.training = types.ModuleType("training")
    sys.modules[contrib.__name__] = contrib
    # They import each other as if this folder were in the path.
    sys.path.extend(importlib.import_module("object_detection").__path__)
