"""The notebooks under `examples/python` run from beginning to end."""

import pytest
from conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "examples" / "python").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is not here")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not here")
    pytest.importorskip("ipykernel", reason="ipykernel is not here")
    pytest.importorskip("torch", reason="torch is not here")
    pytest.importorskip("ncps", reason="ncps is not here")
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "a notebook is kept without what it printed"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_there_is_a_notebook():
    assert NOTEBOOKS
