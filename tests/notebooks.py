"""Runs the notebooks and keeps what they show, for those who read them on the web.

    python -m tests.notebooks                               # all of them, in two minutes
    python -m tests.notebooks notebooks/01_quickstart.ipynb

Paths of the run are kept relative to where it ran, and pictures with few colours.
"""

import base64
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import nbclient
import nbformat
import PIL.Image

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_COLOURS = 64
_PNG = "image/png"


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Returns a notebook with the outputs of a run in a folder.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell has failed.
    """
    notebook = read(path)
    metadata = notebook.metadata
    notebook.metadata = metadata.copy()  # The run adds the version of Python.
    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT), TMPDIR=str(folder)):
        nbclient.NotebookClient(
            notebook,
            timeout=240,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            # What TensorFlow's C++ says of this machine stays in the terminal.
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            resources={"metadata": {"path": folder}},
        ).execute()
    notebook.metadata = metadata
    return notebook


def digest(notebook: nbformat.NotebookNode) -> str:
    """Returns what the outputs of a notebook belong to: its code, in short."""
    code = "\n".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def texts(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Yields the outputs that are text."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            yield output.get("text") or output.get("data", {}).get("text/plain", "")


def kinds(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """Returns of each cell which kinds of outputs it has: "stdout", "image/png".

    Not stderr, where more is said on some machines.
    """
    kinds = [
        [output.get("name") or min(output.get("data", ["error"])) for output in cell.outputs]
        for cell in code_cells(notebook)
    ]
    return [sorted(kind for kind in of_cell if kind != "stderr") for of_cell in kinds]


def keep_outputs(path: Path) -> None:
    """Runs a notebook, and writes it with its outputs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        notebook = run(path, folder)
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if "text" in output:
                output.text = output.text.replace(f"{folder}/", "")
            elif _PNG in output.data:
                output.data[_PNG] = _with_few_colours(output.data[_PNG])
    notebook.metadata["code_of_outputs"] = digest(notebook)
    nbformat.write(notebook, path)


def _with_few_colours(png: str) -> str:
    picture = PIL.Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    small = io.BytesIO()
    picture.quantize(_COLOURS).save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


if __name__ == "__main__":
    for each in map(Path, sys.argv[1:] or NOTEBOOKS):
        keep_outputs(each)
        print(f"Written: {each}")
