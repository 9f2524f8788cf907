"""The plugin of pytest that runs Keras' own tests under one deployment and keeps a record.

    python -m pytest -c tests/keras/pytest.ini -p tests.keras.plugin --deployment=one --record=FILE

Each test starts with the same seeds. The record says of each test whether it passed, and what its
calls of `fit`, `evaluate` and so on returned.
"""

import functools
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from keras.src import testing
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.testing import test_utils

from tests.joined_batches import joined_batches
from tests.keras.deployments import JOINED, OURS, PLAIN, SERVERS
from tests.keras.record import Record, as_plain
from tests.keras.source import PACKAGE

pytest_plugins = ["tests.keras.absent_packages"]

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
SEED = 1


def pytest_addoption(parser):
    parser.addoption("--deployment", choices=(PLAIN, *OURS, JOINED, SERVERS), required=True)
    parser.addoption("--record", type=Path, required=True)


def pytest_configure(config):
    for marker in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{marker}: of Keras")
    # Some tests import the conftest.py of Keras' repository, which is not in its distribution.
    sys.modules["conftest"] = sys.modules[__name__]
    # Some draw their data, each time others.
    draw = functools.partial(test_utils.get_test_data, random_seed=SEED)
    test_utils.get_test_data = draw  # ty: ignore[invalid-assignment]


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config):
    # Several threads add up in an order of their own: plain Keras would not equal itself.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Here, where the end of a process that serves the chief of a cluster is not an error.
    strategy = _make_strategy(config.getoption("deployment"))
    config.pluginmanager.register(_Recorder(strategy, config.getoption("record")))
    with joined_batches(2 if config.getoption("deployment") == JOINED else 1):
        return (yield)


def skip_if_backend(backend, reason):
    """Stands in for the function of Keras' conftest.py."""
    return pytest.mark.skipif(keras.config.backend() == backend, reason=reason)


def _make_strategy(deployment):
    """Returns the strategy in whose scope the tests run, or None."""
    if deployment in (PLAIN, JOINED):
        return None
    import kerasdist  # Plain Keras has never seen it.

    if deployment == SERVERS:
        return kerasdist.make_strategy()
    is_two = deployment == "two"
    config = kerasdist.DeploymentConfig(num_clones=1 + is_two, clone_on_cpu=is_two)
    strategy = kerasdist.make_strategy(config, cluster=kerasdist.Cluster.local())
    if deployment == "undone":
        kerasdist.undo()
    return None if deployment in ("routes", "undone") else strategy


class _Recorder:
    """Runs each test in the scope of `strategy` and writes what it did to `path`."""

    def __init__(self, strategy, path: Path):
        self._strategy = strategy
        self._path = path
        self._record = Record()
        self._calls = []
        self._is_inside = False
        if strategy:
            _enter_after_set_up(strategy)
        for name in METHODS:
            self._wrap(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self._calls = self._record.calls.setdefault(_name(item.nodeid), [])
        keras.utils.set_random_seed(SEED)
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self._record.outcomes[_name(report.nodeid)] = report.outcome
            self._record.messages[_name(report.nodeid)] = _message(report)

    def pytest_sessionfinish(self):
        self._record.write(self._path)

    def _wrap(self, name):
        method = getattr(TensorFlowTrainer, name)

        @functools.wraps(method)
        def recorded(model, *args, **kwargs):
            if self._is_inside:  # `fit` evaluates.
                return method(model, *args, **kwargs)
            self._is_inside = True
            try:
                value = method(model, *args, **kwargs)
            except BaseException as error:
                self._calls.append((name, as_plain(f"raises {type(error).__name__}")))
                raise
            finally:
                self._is_inside = False
            self._calls.append((name, as_plain(value)))
            if name in ("fit", "train_on_batch"):
                self._calls.append((f"weights after {name}", as_plain(_weights(model))))
            return value

        setattr(TensorFlowTrainer, name, recorded)


def _enter_after_set_up(strategy):
    """Lets each test, and what its own `setUp` makes, be inside the scope of `strategy`.

    Keras' own `setUp` clears the session, and the scope around it with it.
    """
    clear_session = testing.TestCase.setUp

    def set_up(self):
        clear_session(self)
        self.enterContext(strategy.scope())

    testing.TestCase.setUp = set_up


def _message(report) -> str:
    """Returns the first line of the error of a test, or why it was skipped."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    return text.partition("\n")[0]


def _name(nodeid: str) -> str:
    return nodeid.removeprefix(f"{PACKAGE}/")


def _weights(model):
    return model.get_weights() if isinstance(model, keras.Model) else None
