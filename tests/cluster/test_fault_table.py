"""The table of faults in the docs is that of the script, and some of its rows are quick."""

from pathlib import Path

import pytest

from tests.cases import exhaustive
from tests.cluster import fault_table, outcomes

nothing_is_left_behind = outcomes.nothing_is_left_behind

DOCS = Path(__file__).parents[2] / "docs/cluster_details.md"
# test_faults.py and test_parameter_server_faults.py inject them.
QUICK = exhaustive("an error on a worker, 2 workers", "KILL of a worker, 2 workers, 2 ps")


def test_docs_have_a_row_for_each_fault_which_ended_as_it_should():
    _, head, table = DOCS.read_text().partition(fault_table.HEAD)
    lines = table.strip().partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    assert head
    assert [tuple(row[:2]) for row in rows] == [
        (fault.name, fault.deployment) for fault in fault_table.FAULTS
    ]
    assert [int(row[4]) for row in rows] == [fault.code for fault in fault_table.FAULTS]
    assert [row[5:] for row in rows] == [
        ["yes", "" if fault.code else "yes", "yes"] for fault in fault_table.FAULTS
    ]


def test_a_task_is_named_where_others_speak_of_it():
    plan = "  worker 1  127.0.0.1:2\n  logs      run\n"
    bystander = "worker 1 | the job is over.\nworker 0 failed; stopped: worker 1.\n"

    assert not fault_table.names(plan + bystander, "worker 1")
    assert fault_table.names(plan + "chief 0  | worker 1 (a:1) is lost.\n", "worker 1")
    assert fault_table.names(plan + "worker 1 failed with exit code 1.\n", "worker 1")


@pytest.mark.parametrize("name", QUICK)
def test_row_of_a_quick_fault(name):
    [fault] = [each for each in fault_table.FAULTS if str(each) == name]
    row = fault_table.row_of(fault)

    assert row.is_as_expected, row
