"""Tutorials print what their pages say, and the commands of the page about logs run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture
def tutorials(monkeypatch, tmp_path):
    """The module that runs tutorials, in an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generator"))
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("tutorials")
    sys.modules.pop("tutorials", None)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_prints_what_its_page_says(page, tutorials):
    text = page.read_text()
    printed = list(tutorials.run(text, page.name))
    assert any(printed)
    assert tutorials.with_outputs(text, printed) == text


def test_outputs_are_written_after_their_blocks(tutorials):
    page = (
        "\n```python\nx = 1\n```\nb\n```python\nprint(x)\n```\n\n```text\nold\n```\nc\n```python\nprint(x + 1)\n```\n"
    )
    printed = list(tutorials.run(page, "page"))
    assert printed == ["", "1\n", "2\n"]
    assert tutorials.with_outputs(page, printed) == (
        "\n```python\nx = 1\n```\nb\n```python\nprint(x)\n```\n\n```text\n1\n```\nc\n```python\nprint(x + 1)\n```\n"
        "\n```text\n2\n```\n"
    )
