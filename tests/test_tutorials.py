"""Tutorials print what their pages say, and the commands of the page about logs run."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from amc_agents.cli import main

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture
def tutorials(monkeypatch, tmp_path):
    """The module that runs tutorials, in an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generator"))
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("tutorials")
    sys.modules.pop("tutorials", None)


@pytest.mark.thorough
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


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def kinds(notebook):
    """The kinds of outputs of each cell: printed text, pictures, values."""
    return [
        [(output["output_type"], sorted(output.get("data", {}))) for output in cell.get("outputs", [])]
        for cell in notebook["cells"]
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_the_outputs_of_a_whole_run(path):
    cells = json.loads(path.read_text())["cells"]
    assert [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"] == [
        number + 1 for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code")
    ]
    assert any(output["output_type"] == "stream" for cell in cells for output in cell.get("outputs", []))
    assert all(output["output_type"] != "error" for cell in cells for output in cell.get("outputs", []))


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tutorials, monkeypatch):
    pytest.importorskip("nbclient", reason="the extra docs is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # A notebook draws into its page.
    executed = importlib.import_module("notebooks").execute(path)
    assert kinds(executed) == kinds(json.loads(path.read_text()))


SMALL = {"produce.TICKETS": 12, "produce.RUNS": 4, "train_base.STEPS": 5, "compare.TICKETS": 2, "compare.PARTICLES": 2}


@pytest.mark.thorough
def test_the_commands_of_the_page_about_logs_run(monkeypatch, tmp_path, capsys):
    # Every command of the page, in its order, with fewer tickets and steps.
    monkeypatch.chdir(tmp_path)
    for name, number in SMALL.items():
        monkeypatch.setattr(f"examples.own_logs.{name}", number)
    commands = re.findall(r"^    ((?:python -m|amc) .*)$", (ROOT / "docs/own-logs.md").read_text(), re.MULTILINE)
    assert [command.split()[:3] for command in commands] == [
        ["python", "-m", "examples.own_logs.produce"],
        ["amc", "import", "threads.sqlite"],
        ["amc", "advise", "data"],
        ["python", "-m", "examples.own_logs.train_base"],
        ["amc", "train", "value"],
        ["python", "-m", "examples.own_logs.compare"],
    ]
    for command in commands:
        run_command(shlex.split(command.replace("--epochs 4", "--epochs 1")), monkeypatch)
    printed = capsys.readouterr().out
    assert "48 conversations in threads.sqlite" in printed
    assert "AMC minus Best-of-8" in printed


def run_command(words, monkeypatch):
    """Run a command of the page in this process."""
    if words[0] == "python":
        importlib.import_module(words[2]).main(*words[3:])
        return
    monkeypatch.setattr(sys, "argv", words)
    with contextlib.suppress(SystemExit):
        main()
