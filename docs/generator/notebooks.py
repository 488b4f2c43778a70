"""Runs notebooks and keeps their outputs.

python docs/generator/notebooks.py docs/notebooks/*.ipynb
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook from top to bottom in a new kernel, and return it with its outputs. A cell's error is raised."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    # Without coalescing, a print that the kernel flushes late is an output of its own.
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False, coalesce_streams=True)
    client.execute()
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        nbformat.write(execute(path), path)  # type: ignore[no-untyped-call]
