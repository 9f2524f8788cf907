"""The report says which private name has moved, what uses it, and what to look at."""

import pytest

from tests.versions.private_names import moved_names

ADAPTER = """
import keras
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers import no_such_module

ROUTABLE = {
    "fit": Route(keras.Model, "fit", "self x y"),
    "make_train_function": Route(keras.Model, "make_trainer_function", "self force"),
    "save": Route(keras.Model, "save", "self filepath " "overwrite zipped kwargs"),
}


def build_optimizer(model):
    return keras_trainer.TFEpochIterators(model._no_such_attribute)


def strategy_of(model):
    return no_such_module, model._symbolic_build
"""


def test_nothing_has_moved_in_the_locked_versions():
    assert moved_names() == []


@pytest.fixture
def moved(tmp_path):
    """What has moved, by the end of its name, for an adapter of names that never were."""
    (tmp_path / "keras_optimizers.py").write_text(ADAPTER)
    return {each.name.rpartition(".")[2]: each for each in moved_names(tmp_path)}


def test_everything_that_has_moved_is_found_and_nothing_else(moved):
    assert set(moved) == {
        *("no_such_module", "make_trainer_function", "fit", "TFEpochIterators"),
        "_no_such_attribute",
    }


def test_a_moved_name_comes_with_its_users_and_what_is_near(moved):
    found = moved["TFEpochIterators"]

    assert found.name == "keras.src.backend.tensorflow.trainer.TFEpochIterators"
    assert found.used_by[0] == "keras_optimizers.py:14 build_optimizer"
    assert "training/hooks/slots.py" in found.used_by
    assert found.look_at == [
        *("TFEpochIterator", "EpochIterator"),
        "keras/src/backend/tensorflow/trainer.py",
    ]


def test_a_module_that_is_gone_comes_with_the_functions_that_used_it(moved):
    assert moved["no_such_module"].name == "keras.src.trainers.no_such_module"
    assert "strategy_of" in moved["no_such_module"].used_by[0]


def test_a_function_that_takes_something_else_says_what(moved):
    assert moved["fit"].what.startswith("takes (self, x, y, batch_size")
    assert moved["fit"].what.endswith("not (self, x, y)")
    assert "make_train_function" in moved["make_trainer_function"].look_at
