"""Notebooks run from top to bottom and are stored without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.cases import named

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_notebook_is_stored_without_outputs(path):
    code_cells = [cell for cell in nbformat.read(path, as_version=4).cells if "outputs" in cell]

    assert code_cells
    for cell in code_cells:
        assert cell.outputs == [], f"Strip the outputs of: {cell.source}"
        assert cell.execution_count is None, f"Strip the execution count of: {cell.source}"


# The README and docs/watching.md say what these do, and their code runs, too.
LIKE_PAGES = {"01_quickstart", "03_watching_training"}


@pytest.mark.parametrize(
    "path", named({path.stem: path for path in NOTEBOOKS}, exhaustive=LIKE_PAGES)
)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)

    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
