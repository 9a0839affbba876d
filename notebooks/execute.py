"""Runs the tutorials and writes them back with their outputs, as they are committed.

    python notebooks/execute.py                        # all of this folder
    python notebooks/execute.py notebooks/01_*.ipynb   # some

What would differ from one machine or run to the next without telling a reader anything (kernel names, timestamps,
versions of tools) is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import nbclient
import nbformat

FOLDER = Path(__file__).resolve().parent
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path, *, first: str = "", timeout_s: int = 300) -> nbformat.NotebookNode:
    """The notebook with fresh outputs.

    Args:
        path: an .ipynb file; it is not written to.
        first: Python that the kernel runs before the first cell.
        timeout_s: limit of each cell.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first, execution_count=None))
    resources = {"metadata": {"path": str(path.parent)}}  # the working directory, as in Jupyter
    nbclient.NotebookClient(notebook, timeout=timeout_s, kernel_name="python3", resources=resources).execute()
    del notebook.cells[0]
    return stripped(notebook)


def stripped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without what belongs to the machine or tool that ran it; changed in place, too."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index:02d}"
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
    return notebook


def main(arguments: Sequence[str]) -> None:
    """Executes the named notebooks, or all, in place."""
    for path in map(Path, arguments or sorted(FOLDER.glob("*.ipynb"))):
        print(f"{path.name} ...", end=" ", flush=True)
        nbformat.write(execute(path), path)
        print("done")


if __name__ == "__main__":
    main(sys.argv[1:])
