"""What routed functions take is checked before any of them is routed."""

import dataclasses
import functools
import inspect
import re
import time

import keras
import pytest

from kerasdist.private import keras_routes


@pytest.fixture
def route(monkeypatch):
    """Routes `embed` and one other function, of a class that has it, through one that counts."""

    def lay(function):
        class Owner:
            embed = function
            assign_add = keras.Variable.assign_add

        for name in ("assign_add", "embed"):
            known = dataclasses.replace(keras_routes.ROUTABLE[name], owner=Owner, name=name)
            monkeypatch.setitem(keras_routes.ROUTABLE, name, known)
        before = dict(vars(Owner))
        try:
            keras_routes.route(dict.fromkeys(("assign_add", "embed"), lambda original, *args: 7))
        except RuntimeError:
            assert dict(vars(Owner)) == before  # Neither of them is routed.
            raise
        return Owner

    return lay


@pytest.mark.parametrize("name", keras_routes.ROUTABLE)
def test_routable_function_takes_what_is_known(name):
    known = keras_routes.ROUTABLE[name]
    function = inspect.unwrap(getattr(known.owner, known.name))

    assert list(inspect.signature(function).parameters) == known.parameters.split()


def test_all_of_them_are_checked_in_milliseconds():
    routes = keras_routes.ROUTABLE.values()
    functions = [(each.parameters, getattr(each.owner, each.name)) for each in routes]

    def seconds():
        start = time.process_time()
        for parameters, function in functions:
            keras_routes.check_parameters(parameters, "keras.Place", function)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.05


def handed_on(*args, **kwargs):
    return None


@pytest.mark.parametrize(
    "function",
    [
        lambda self, inputs: None,
        lambda self, inputs, new=None: None,
        lambda self, inputs, *, new=None: None,
        # Those that other libraries put in the place of Keras' own.
        handed_on,
        functools.wraps(keras.layers.Embedding.call)(handed_on),
    ],
    ids=["the same", "new default", "new keyword", "hands on", "wraps"],
)
def test_what_can_be_called_as_before_is_routed(route, function):
    assert route(function)().embed(None) == 7


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (lambda self: None, "(self)"),
        (lambda self, tokens: None, "(self, tokens)"),
        (lambda inputs, self: None, "(inputs, self)"),
        (lambda self, inputs, new: None, "(self, inputs, new)"),
        (lambda self, new=None, inputs=None: None, "(self, new, inputs)"),
        (lambda self, inputs, *, new: None, "(self, inputs, new)"),
    ],
    ids=["gone", "renamed", "order", "new", "new in the middle", "new keyword"],
)
def test_what_takes_something_else_is_one_error(route, function, seen):
    with pytest.raises(RuntimeError) as error:
        route(function)

    message = str(error.value)
    assert f"Owner.embed{seen}` of Keras {keras.__version__} is not" in message
    assert "(self, inputs). Nothing was changed." in message
    assert re.search(r'pip install "keras>=3.*a newer kerasdist may know it', message)
