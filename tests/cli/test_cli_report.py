from __future__ import annotations

import json

import pytest

from tests.operations.page.conftest import make_run as make_run
from tests.operations.report.conftest import bench_folder as bench_folder


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    """Bundling the library takes seconds."""
    monkeypatch.setattr("amc_agents.operations.report.library", lambda: "")


def test_a_page_is_written_beside_the_results(command, bench_folder):
    folder = bench_folder()
    code, out, _ = command("report", folder)
    assert code == 0
    assert "report.html" in out
    assert "Paired differences" in (folder / "report.html").read_text()


def test_a_page_is_written_elsewhere_and_opened(command, make_run, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    make_run().save(tmp_path / "run")
    code, out, _ = command("report", tmp_path / "run", "--out", tmp_path / "page.html", "--open", "--json")
    assert code == 0
    assert json.loads(out) == {"page": str(tmp_path / "page.html"), "bytes": (tmp_path / "page.html").stat().st_size}
    assert opened == [str(tmp_path / "page.html")]
    assert "Genealogy" in (tmp_path / "page.html").read_text()


def test_another_folder_is_one_line(command, tmp_path):
    code, _, err = command("report", tmp_path)
    assert code == 2
    assert err.startswith("amc: ")
    assert "holds no results: expected tuning.json (amc tune)" in err
    assert err.count("\n") == 1
