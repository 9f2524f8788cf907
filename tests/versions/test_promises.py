"""What `make test-versions` runs, and what it says of it."""

import datetime
import re

import pytest

from tests.versions import __main__ as command
from tests.versions import environment
from tests.versions.plugin import PROMISES, promise_of
from tests.versions.promises import Result, merged

CASE = "tests/parity/test_cases.py::test_equals_one_device"
ALL_HOLD = {name: {"passed": ["a test"], "failed": []} for name in PROMISES}


def result(moved=(), **outcomes):
    outcomes = {name.replace("_", " "): each for name, each in outcomes.items()}
    return Result(
        versions="3.99.0, 2.99.0",
        moved=[*moved],
        outcomes=ALL_HOLD | outcomes,
        output="F\n1 failed",
    )


@pytest.mark.parametrize(
    ("test", "promise"),
    [
        ("tests/private/test_names.py::test_a", "private names"),
        (f"{CASE}[Adam-3 replicas]", "replicas"),
        (f"{CASE}[Adam-4 replicas]", None),
        (f"{CASE}_on_every_worker[Adam-2 workers]", None),
        (f"{CASE}_on_every_worker[Adam-2 workers x 2 clones]", "workers"),
        (f"{CASE}_on_parameter_servers[Adam-1 worker + 1 ps]", None),
        ("tests/callbacks/test_every.py::test_a[2 replicas]", None),
        ("tests/callbacks/test_every.py::test_a[3 replicas]", "callbacks"),
        ("tests/callbacks/test_every.py::test_a", None),
        ("tests/test_plan.py::test_a", None),
    ],
)
def test_a_test_belongs_to_a_promise(test, promise):
    assert promise_of(test) == promise


def test_a_promise_holds_where_tests_of_it_ran_and_passed():
    assert result().holds
    assert not result(callbacks={"passed": ["a"], "failed": ["b"]}).holds
    assert not result(callbacks={"passed": [], "failed": []}).holds
    assert not Result(versions="", moved=[], outcomes={}, output="").holds


def test_groups_of_tests_are_counted_together_and_one_that_did_not_end_counts_as_none():
    nothing = {name: {"passed": [], "failed": []} for name in PROMISES}
    failed = nothing | {"callbacks": {"passed": ["a"], "failed": ["b"]}}

    assert merged([nothing, failed, failed])["callbacks"] == {
        "passed": ["a", "a"],
        "failed": ["b", "b"],
    }
    assert merged([nothing, {}]) == {}


def test_the_table_counts_and_the_details_name():
    moved = {"name": "keras.gone", "what": "is gone", "used_by": ["a.py:1 fit"], "look_at": []}
    found = result([moved], callbacks={"passed": ["a"], "failed": ["b"]})

    assert not found.holds
    assert found.cell("private names") == "1 MOVED"
    assert found.cell("callbacks") == "1 FAIL, 1 hold"
    assert found.cell("workers") == "1 hold"
    details = "\n".join(found.details())
    assert "keras.gone is gone\n    used by: a.py:1 fit\n    look at: nothing" in details
    assert details.endswith("1 failed")


def test_each_row_of_the_table_has_its_date(monkeypatch, capsys):
    monkeypatch.setattr(command.sys, "argv", ["versions"])
    monkeypatch.setattr(command, "_makers", lambda chosen, pairs: [lambda: None])
    monkeypatch.setattr(command, "examine", lambda environment: result())
    days = [datetime.date.today()]

    assert command.main() == 0

    days.append(datetime.date.today())
    head, line, row = (
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in capsys.readouterr().out.split("\n")[:3]
    )
    assert head == ["Keras, TensorFlow", "run on", *PROMISES]
    assert line == ["---"] * len(head)
    assert row[0] == "3.99.0, 2.99.0" and datetime.date.fromisoformat(row[1]) in days


def test_every_lock_has_the_versions_of_its_name():
    pairs = environment.locked_pairs()

    assert len(pairs) >= 2
    for pair in pairs:
        lock = (environment.LOCKS / f"{pair}.lock").read_text()
        for name, version in re.findall(r"(keras|tensorflow)-([\d.]+\d)", pair):
            assert f"\n{name}=={version}." in lock


def test_the_newest_keras_is_the_release_and_not_the_nightlies_before_it():
    newest = ["keras==3.15.1", "keras-nightly==3.16.0.dev2026102704", "keras==3.16.0rc0"]

    assert max(newest[:2], key=environment.order_of) == newest[1]
    assert max(newest, key=environment.order_of) == newest[2]
