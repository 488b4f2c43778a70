"""Notebooks as Markdown pages: their text, their code, and the outputs that they keep."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def notebook_page(path: Path, images: Path) -> str:
    """Return a notebook as Markdown; its pictures are written into the folder `images` beside the page."""
    cells = json.loads(path.read_text())["cells"]
    note = f"*This page is the notebook [{path.name}]({path.name}). Its outputs are those of the last run.*"
    first, *others = [_cell(cell, f"{path.stem}-{number}", images) for number, cell in enumerate(cells)]
    return "\n\n".join([first, note, *others]) + "\n"


def _cell(cell: dict[str, Any], name: str, images: Path) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    outputs = [_output(output, f"{name}-{number}", images) for number, output in enumerate(cell["outputs"])]
    return "\n\n".join([f"```python\n{source}\n```", *outputs])


def _output(output: dict[str, Any], name: str, images: Path) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        images.mkdir(parents=True, exist_ok=True)
        (images / f"{name}.png").write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![Output of the cell above]({name}.png)"
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"
