"""One object has another method for a while; its class and other objects keep theirs."""

import inspect

import keras
import pytest

from kerasdist.support.replaced_method import ReplacedMethods, method_replaced


def twice(method, prefix, *args, **kwargs):
    return f"{prefix}: {2 * method(*args, **kwargs)}"


def test_a_method_of_one_object_is_replaced_and_put_back_after_an_error():
    metric, other = keras.metrics.Mean(), keras.metrics.Mean()
    metric.update_state([1.0, 3.0])
    names = set(vars(metric))

    with pytest.raises(KeyError), method_replaced(metric, "result", twice, "twice"):
        assert metric.result() == "twice: 4.0"
        assert float(other.result()) == 0.0
        raise KeyError

    assert float(metric.result()) == 2.0
    assert set(vars(metric)) == names


def test_one_that_was_the_objects_own_comes_back():
    layer = keras.layers.Identity()
    layer.call = lambda inputs: inputs + 1

    with (
        method_replaced(layer, "call", twice, "outer"),
        method_replaced(layer, "call", twice, "inner"),
    ):
        assert layer.call(1) == "inner: outer: 4outer: 4"

    assert layer.call(1) == 2


def test_whoever_looks_at_its_parameters_sees_those_of_the_method():
    layer = keras.layers.Dropout(0.5)
    parameters = inspect.signature(layer.call).parameters

    with method_replaced(layer, "call", twice, "twice"):
        assert inspect.signature(layer.call).parameters == parameters


def test_several_are_replaced_each_time_the_context_is_entered():
    metric, calls = keras.metrics.Mean(), []

    def note(method, *args):
        calls.append(method.__name__)
        return method(*args)

    replaced = ReplacedMethods(metric, ["update_state", "result"], note)
    names = set(vars(metric))
    for _ in range(2):
        with pytest.raises(KeyError), replaced:
            metric.update_state([1.0, 3.0])
            assert float(metric.result()) == 2.0
            raise KeyError
        metric.reset_state()
        assert float(metric.result()) == 0.0

    assert calls == ["update_state", "result"] * 2
    assert set(vars(metric)) == names


def test_of_several_the_objects_own_come_back():
    layer = keras.layers.Identity()
    layer.call = own = lambda inputs: inputs + 1
    outer = ReplacedMethods(layer, ["call"], lambda method, *args: f"outer: {method(*args)}")
    inner = ReplacedMethods(layer, ["call"], lambda method, *args: f"inner: {method(*args)}")

    with outer, inner:
        assert layer.call(1) == "inner: outer: 2"

    assert vars(layer)["call"] is own
