from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from amc_agents.bench.report import Results
from amc_agents.bench.report_tables import caption, deployment_rows
from amc_agents.bench.statistics import mean_interval
from amc_agents.cli.comparison import detail_table, difference_table, score_table
from amc_agents.errors import CheckpointError
from amc_agents.operations.report.bench_page import bench_page, headline
from tests.operations.page.conftest import HOSTILE
from tests.operations.page.test_run_page import ALLOWED, _Attributes, texts
from tests.operations.report.charts import specs


def printed(*tables) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_every_figure_of_the_command_line_is_on_the_page(bench_folder):
    folder = bench_folder()
    results, page = Results.load(folder / "results.json"), bench_page(folder, "")
    shown = printed(score_table(results), detail_table(results), difference_table(results))
    figures = re.findall(r"\d\.\d{3} ± \d\.\d{3}|[+-]\d\.\d{3}", shown)
    assert len(figures) >= 20
    assert [figure for figure in figures if figure not in page] == []
    assert caption(results).split(";")[0] in page


def test_each_score_has_its_interval(bench_folder):
    folder = bench_folder()
    page = bench_page(folder, "")
    for method in Results.load(folder / "results.json").methods:
        low, high = mean_interval(method.scores["deployable"]) or (0, 0)
        assert f"{low:.3f} to {high:.3f}" in page
    assert "12 tasks, 2 seed(s)" in page


def test_the_two_picks_are_in_charts_of_their_own(bench_folder):
    drawn = specs(bench_page(bench_folder(), ""))
    assert [title for title in drawn if "pick" in title] == ["Deployable pick", "Oracle's pick"] * 2
    for title, spec in drawn.pairs:
        values = str(spec)
        assert not ("oracle" in values and "deployable" in values), title


def test_the_headline_compares_the_best_method_with_its_strongest_rival(bench_folder):
    results = Results.load(bench_folder(n_tasks=40) / "results.json")
    pair = next(
        pair
        for pair in results.comparisons
        if (pair.a, pair.b, pair.metric) == ("amc-hidden", "best-of-n", "deployable")
    )
    assert pair.low > 0
    assert headline(results) == (
        f"AMC, rewards hidden beats Best-of-N by {pair.difference:.3f} on the deployable pick, "
        f"95% interval [{pair.low:+.3f}, {pair.high:+.3f}]."
    )


def test_a_difference_that_may_be_zero_is_no_victory(bench_folder):
    results = Results.load(bench_folder() / "results.json")
    undecided = [pair.model_copy(update={"low": -0.1, "high": 0.2}) for pair in results.comparisons]
    assert "cannot be told apart" in headline(results.model_copy(update={"comparisons": undecided}))
    worse = [pair.model_copy(update={"difference": -0.2, "low": -0.3, "high": -0.1}) for pair in results.comparisons]
    assert headline(results.model_copy(update={"comparisons": worse})).startswith("Best-of-N beats AMC")


def test_a_headline_about_the_oracles_pick_says_that_it_cannot_be_deployed(bench_folder):
    results = Results.load(bench_folder(n_tasks=40) / "results.json")
    assert "observer" not in headline(results)
    oracles = [pair for pair in results.comparisons if pair.metric == "oracle"]
    assert headline(results.model_copy(update={"comparisons": oracles})).endswith(
        "Only an observer of the rewards could pick so."
    )


def test_an_unfinished_comparison_says_so(bench_folder):
    page = bench_page(bench_folder(complete=False), "")
    assert "the command has not ended" in page
    assert "amc-hidden" in page


def test_a_summary_without_records_has_a_page(bench_folder):
    folder = bench_folder()
    (folder / "records.jsonl").unlink()
    assert "Paired differences" in bench_page(folder, "")


def test_a_folder_without_results_yet_is_refused(bench_folder):
    folder = bench_folder(complete=False)
    (folder / "records.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="no results yet"):
        bench_page(folder, "")


def test_the_stored_run_can_be_explored(bench_folder, make_run):
    folder = bench_folder()
    make_run().save(folder)
    assert texts(bench_page(folder, ""))["branches"]


def test_failures_are_counted(bench_folder):
    assert bench_page(bench_folder(), "").count('<td class="number">2</td><td>a particle failed</td>') == 3


def test_failed_runs_are_counted_and_explained(bench_folder):
    folder = bench_folder()
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(lines[:-1]))
    lost = json.loads(lines[-1])
    failure = {name: lost[name] for name in ("method", "task", "seed")} | {"error": f"OSError: lost{HOSTILE}"}
    (folder / "failures.jsonl").write_text(json.dumps(failure) + "\n")
    page = bench_page(folder, "")
    assert "1 of 24" in page
    assert "OSError: lost&lt;/script&gt;" in page


def test_the_decision_for_a_method_is_shown_as_on_the_command_line(bench_folder):
    folder = bench_folder()
    page = bench_page(folder, "")
    rows = deployment_rows(Results.load(folder / "results.json"))
    assert rows
    assert [
        cell for row in rows for cell in row if f"<td>{cell}</td>" not in page and f">{cell}</td>" not in page
    ] == []


def test_no_text_becomes_markup(bench_folder):
    page = bench_page(bench_folder(n_tasks=3, text=HOSTILE), "")
    parser = _Attributes()
    parser.feed(page)
    assert "img" not in parser.tags
    assert {name for name in parser.names if not name.startswith(("aria-", "data-"))} <= ALLOWED
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)


def test_a_comparison_of_a_thousand_runs_stays_small_without_the_library(bench_folder):
    page = bench_page(bench_folder(n_tasks=49, seeds=7, n=15), "")
    assert "1,029" in page
    assert len(page.encode()) < 1_000_000
