"""The checks of arguments: what each refuses, and what it says."""

import numpy as np
import pytest

from kerasdist.support import checks


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.check_int, 2),
        (checks.check_number, 2),
        (checks.check_number, -0.5),
        (checks.check_number, np.float32(2)),
        (checks.check_positive, 0.5),
        (checks.check_positive, float("inf")),
        (checks.check_positive, np.int64(3)),
        (checks.check_positive, np.float32(3)),
        (checks.check_secs, 0),
        (checks.check_secs, float("inf")),
        (checks.check_decay, 0),
        (checks.check_decay, 0.999),
        (checks.check_bool, False),
    ],
)
def test_what_fits_passes(check, value):
    check("argument", value)


@pytest.mark.parametrize("value", [True, "2", None, 2.0])
def test_an_int_is_no_bool_text_or_float(value):
    with pytest.raises(TypeError, match=f"^`steps` must be an int. Received: steps={value!r}.$"):
        checks.check_int("steps", value)


def test_an_int_may_have_a_smallest_value():
    checks.check_int("steps", 2, at_least=2)

    with pytest.raises(ValueError, match=r"^`steps` must be at least 2\. Received: steps=1\.$"):
        checks.check_int("steps", 1, at_least=2)


@pytest.mark.parametrize("secs", [0, -1, float("nan")])
def test_a_limit_is_positive(secs):
    with pytest.raises(ValueError, match=f"^`limit` must be positive. Received: limit={secs}.$"):
        checks.check_positive("limit", secs)


def test_a_limit_may_have_to_be_finite():
    checks.check_positive("limit", 1.0, finite=True)

    with pytest.raises(ValueError, match=r"^`limit` must be finite. Received: limit=inf\.$"):
        checks.check_positive("limit", float("inf"), finite=True)


@pytest.mark.parametrize(
    "check",
    [checks.check_number, checks.check_positive, checks.check_secs, checks.check_decay],
)
@pytest.mark.parametrize("value", [True, "2", None])
def test_a_number_is_no_bool_or_text(check, value):
    with pytest.raises(TypeError, match=f"`limit` must be a number.* Received: limit={value!r}"):
        check("limit", value)


@pytest.mark.parametrize("secs", [-1, float("nan")])
def test_seconds_are_at_least_0(secs):
    with pytest.raises(ValueError, match=f"`grace_secs` must be at least 0.*grace_secs={secs}"):
        checks.check_secs("grace_secs", secs)


@pytest.mark.parametrize("decay", [-0.1, 1, float("nan")])
def test_a_decay_is_less_than_1(decay):
    with pytest.raises(ValueError, match=f"at least 0 and less than 1. Received: decay={decay}"):
        checks.check_decay("decay", decay)


@pytest.mark.parametrize("value", ["False", 1, None])
def test_only_a_bool_is_true_or_false(value):
    with pytest.raises(TypeError, match=f"must be True or False. Received: chief={value!r}"):
        checks.check_bool("chief", value)


def test_a_text_is_a_str():
    checks.check_text("monitor", "loss")
    with pytest.raises(TypeError, match=r"^`monitor` must be a str\. Received: monitor=3\.$"):
        checks.check_text("monitor", 3)


def test_a_choice_is_one_of_some():
    checks.check_choice("mode", "min", ("auto", "min", "max"))
    with pytest.raises(ValueError, match=r'`mode` must be "auto", "min" or "max".*: mode=None'):
        checks.check_choice("mode", None, ("auto", "min", "max"))


@pytest.mark.parametrize("values", [{"steps": 0, "secs": 1.5}, {"steps": None, "secs": None}])
def test_one_of_two_arguments_is_to_be_given(values):
    checks.check_one_of(steps=0, secs=None)
    received = f"steps={values['steps']}, secs={values['secs']}"
    with pytest.raises(ValueError, match=f"^Give one of `steps` and `secs`. Received: {received}"):
        checks.check_one_of(**values)
    with pytest.raises(ValueError, match=r"^Give one of `a`, `b` and `c`\. Received: a=1, b=2, c="):
        checks.check_one_of(a=1, b=2, c=None)


def test_it_may_be_that_none_is_given():
    checks.check_one_of(steps=None, secs=None, may_be_none=True)
    with pytest.raises(ValueError, match="steps=1, secs=1"):
        checks.check_one_of(steps=1, secs=1, may_be_none=True)


def test_an_instance_may_be_left_out():
    checks.check_kind("steps", None, int)
    with pytest.raises(TypeError, match=r"`steps` must be a int\. Received: steps='2'\."):
        checks.check_kind("steps", "2", int)


def test_a_folder_is_a_path_that_is_not_empty(tmp_path):
    assert checks.checked_folder("log_dir", tmp_path) == str(tmp_path)
    with pytest.raises(TypeError, match=r"`log_dir` must be the path.* Received: log_dir=b'runs'"):
        checks.checked_folder("log_dir", b"runs")
    with pytest.raises(ValueError, match=r"`log_dir` must not be empty.* Received: log_dir=''"):
        checks.checked_folder("log_dir", "")
