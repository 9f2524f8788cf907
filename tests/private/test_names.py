"""A private name that has moved is an error that says which one, which version, and what to do."""

import re
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from kerasdist.private import (
    coordinator_adapter,
    keras_losses,
    keras_routes,
    keras_threads,
    names,
    strategy_adapter,
)


class Renamed:
    extended = object()


def test_a_route_that_keras_has_no_more_is_an_error(monkeypatch):
    monkeypatch.setitem(keras_routes.ROUTABLE, "gone", keras_routes.Route(keras.Model, "_gone", ""))

    expected = rf'Model._gone` is not in Keras {keras.__version__}.*pip install "keras>=3'
    with pytest.raises(AttributeError, match=expected):
        keras_routes.route({"gone": print})


def test_a_function_of_a_module_of_keras_that_is_gone_is_an_error():
    with pytest.raises(AttributeError, match=r"keras\.src\.\w+.*\._gone` is not in Keras 3"):
        names.find(keras_losses.keras_loss, "_gone")


def test_a_name_that_tensorflow_has_no_more_is_an_error():
    renamed: Any = Renamed()
    expected = rf"Renamed\._collective_key_base` is not in TensorFlow {re.escape(tf.__version__)}"
    with pytest.raises(AttributeError, match=expected):
        strategy_adapter.separate_collectives(renamed)
    with (
        pytest.raises(AttributeError, match=r"object\._being_scheduled.*pip install"),
        coordinator_adapter.traced_for_workers(renamed),
    ):
        pass


@pytest.mark.parametrize(
    ("library", "moved"),
    [("Keras", "from keras.src import gone"), ("TensorFlow", "import tensorflow.python.gone")],
)
def test_an_import_that_finds_nothing_is_one_error(library, moved):
    version = re.escape(names.version_of(library))
    expected = rf"^{library} {version} has moved .*gone.*pip install \"{library.lower()}>="
    with pytest.raises(RuntimeError, match=expected), names.told_where_moved():
        exec(moved)


def test_what_to_install_is_what_kerasdist_depends_on():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert set(names.REQUIREMENTS.values()) <= set(project["dependencies"])


def test_what_is_replaced_is_put_back_after_an_error():
    original = tomllib.loads
    with (
        pytest.raises(KeyError),
        names.replaced({(tomllib, "loads"): lambda original, text: original(text) | {"b": 2}}),
    ):
        assert tomllib.loads("a = 1") == {"a": 1, "b": 2}
        raise KeyError

    assert tomllib.loads is original


def test_each_thread_replaces_for_itself_whatever_the_order_in_which_they_leave():
    original, others_turn, own_turn = tomllib.loads, threading.Event(), threading.Event()
    seen = []

    def replace(name, enter, leave):
        assert enter.wait(30)
        enter.clear()
        with names.replaced({(tomllib, "loads"): lambda original, text: {name: original(text)}}):
            leave.set()
            assert enter.wait(30)
            seen.append(tomllib.loads("a = 1"))
        leave.set()

    other = threading.Thread(target=replace, args=("other", others_turn, own_turn))
    other.start()
    own_turn.set()
    replace("own", own_turn, others_turn)
    other.join(30)

    assert seen == [{"own": {"a": 1}}, {"other": {"a": 1}}]
    assert tomllib.loads is original


def test_the_threads_of_replicas_inherit_what_is_replaced():
    state = keras_threads.thread_state()

    def load():
        keras_threads.inherit(state)
        return tomllib.loads("a = 1")

    with ThreadPoolExecutor(1) as pool, names.replaced({(tomllib, "loads"): lambda *_: "replaced"}):
        assert pool.submit(load).result() == "replaced"
