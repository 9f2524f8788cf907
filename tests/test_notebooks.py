"""Notebooks run from top to bottom, and hold what they show then."""

import re

import pytest

from tests import notebooks
from tests.cases import named

pytestmark = pytest.mark.processes

each_notebook = pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
REMEDY = "Run `python -m tests.notebooks`."


def test_there_are_notebooks():
    assert notebooks.NOTEBOOKS


@each_notebook
def test_a_notebook_holds_the_outputs_of_its_code(path):
    notebook = notebooks.read(path)
    cells = notebooks.code_cells(notebook)

    assert notebook.metadata.get("code_of_outputs") == notebooks.digest(notebook), REMEDY
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], REMEDY


@each_notebook
def test_the_outputs_show_a_run_that_could_be_anywhere_and_went_well(path):
    notebook = notebooks.read(path)
    text = "\n".join(notebooks.texts(notebook))

    assert path.stat().st_size < 150_000
    assert not re.search("Traceback|Error|[Ww]arning|WARNING| at 0x", text)
    assert not re.search(r"(?<![\w:/.])/\w+/|[A-Z]:\\", text), "A path of a machine."
    assert not any("error" in each for each in notebooks.kinds(notebook))


# The README and docs/watching.md say what these do, and their code runs, too.
LIKE_PAGES = {"01_quickstart", "03_watching_training"}


@pytest.mark.parametrize(
    "path", named({path.stem: path for path in notebooks.NOTEBOOKS}, exhaustive=LIKE_PAGES)
)
def test_a_notebook_runs_and_shows_what_it_holds(path, tmp_path):
    run = notebooks.run(path, tmp_path)

    assert notebooks.kinds(run) == notebooks.kinds(notebooks.read(path)), REMEDY
